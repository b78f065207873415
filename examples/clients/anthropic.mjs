// @anthropic-ai/sdk@1.14.0
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: "http://127.0.0.1:8000", apiKey: "none" });
const messages = [{ role: "user", content: "What is the capital of France?" }];

// ---- plain ----
console.log((await client.messages.create({ model: "smollm2", max_tokens: 30, messages })).content[0].text);

// ---- stream ----
const stream = client.messages.stream({ model: "smollm2", max_tokens: 30, messages });
console.log(await stream.on("text", (text) => process.stdout.write(text)).finalText());

// ---- tools ----
const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ name: "weather", description: "The weather of a city.", input_schema }];
const tool_choice = { type: "any" };
const answer = await client.messages.create({ model: "smollm2", max_tokens: 100, messages, tools, tool_choice });
console.log(answer.content[0].input.city);
