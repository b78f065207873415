// ollama@0.6.4
import { Ollama } from "ollama";

const client = new Ollama({ host: "http://127.0.0.1:8000" });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const options = { num_predict: 30 };

// ---- plain ----
console.log((await client.chat({ model: "smollm2", messages, options })).message.content);

// ---- stream ----
for await (const part of await client.chat({ model: "smollm2", messages, options, stream: true }))
  process.stdout.write(part.message.content);

// ---- structured output ----
const format = { type: "object", properties: { name: { type: "string" } }, required: ["name"], additionalProperties: false };
console.log(JSON.parse((await client.chat({ model: "smollm2", messages, format, options: { temperature: 0 } })).message.content).name);

// ---- tools ----
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "weather", description: "The weather of a city.", parameters } }];
console.log((await client.chat({ model: "smollm2", messages, tools, options })).message);
