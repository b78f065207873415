// ai@6.0.326 @ai-sdk/openai-compatible@2.0.92 zod@4.6.7
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";

const url = "http://127.0.0.1:8000/v1";
const model = createOpenAICompatible({ name: "draftwood", baseURL: url, supportsStructuredOutputs: true })("smollm2");
const prompt = "What is the capital of France?";

// ---- plain ----
console.log((await generateText({ model, prompt, maxOutputTokens: 30 })).text);

// ---- stream ----
for await (const text of streamText({ model, prompt, maxOutputTokens: 30 }).textStream) process.stdout.write(text);

// ---- structured output ----
console.log((await generateObject({ model, prompt, temperature: 0, schema: z.object({ name: z.string() }) })).object.name);

// ---- tools ----
const weather = tool({ description: "The weather of a city.", inputSchema: z.object({ city: z.string() }) });
const answer = await generateText({ model, prompt, tools: { weather }, toolChoice: "required", maxOutputTokens: 100 });
console.log(answer.toolCalls[0].input);
