// openai@6.49.0
import OpenAI from "openai";

const client = new OpenAI({ baseURL: "http://127.0.0.1:8000/v1", apiKey: "none" });
const question = [{ role: "user", content: "What is the capital of France?" }];

// ---- plain ----
const answer = await client.chat.completions.create({ model: "smollm2", messages: question, max_tokens: 30 });
console.log(answer.choices[0].message.content);
console.log((await client.responses.create({ model: "smollm2", input: "Hello", max_output_tokens: 10 })).output_text);

// ---- stream ----
const stream = await client.chat.completions.create({ model: "smollm2", messages: question, max_tokens: 30, stream: true });
for await (const chunk of stream) process.stdout.write(chunk.choices[0].delta.content ?? "");

// ---- structured output ----
const schema = { type: "object", properties: { name: { type: "string" } }, required: ["name"], additionalProperties: false };
const format = { type: "json_schema", json_schema: { name: "city", schema } };
const city = await client.chat.completions.create({ model: "smollm2", messages: question, temperature: 0, response_format: format });
console.log(JSON.parse(city.choices[0].message.content).name);

// ---- tools ----
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "weather", parameters } }];
const call = await client.chat.completions.create({ model: "smollm2", messages: question, tools, tool_choice: "required", max_tokens: 100 });
console.log(call.choices[0].message.tool_calls[0].function);
