# openai==3.57.0
from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
question = [{"role": "user", "content": "What is the capital of France?"}]

# ---- plain ----
answer = client.chat.completions.create(model="smollm2", messages=question, max_tokens=30)
print(answer.choices[0].message.content)
assert client.responses.create(model="smollm2", input="Hello", max_output_tokens=10).output_text

# ---- stream ----
for chunk in client.chat.completions.create(model="smollm2", messages=question, max_tokens=30, stream=True):
    print(chunk.choices[0].delta.content or "", end="")
with client.responses.stream(model="smollm2", input="Hello", max_output_tokens=10) as events:
    assert any(event.type == "response.output_text.delta" for event in events)


# ---- structured output ----
class City(BaseModel):
    name: str
    country: str


answer = client.chat.completions.parse(model="smollm2", messages=question, temperature=0, response_format=City)
print(answer.choices[0].message.parsed.name)

# ---- tools ----
weather = {
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
tools = [{"type": "function", "function": weather}]
answer = client.chat.completions.create(
    model="smollm2", messages=question, tools=tools, tool_choice="required", max_tokens=100
)
print(answer.choices[0].message.tool_calls[0].function)
tools = [{"type": "function", **weather}]
assert client.responses.create(
    model="smollm2", input="Hello", tools=tools, tool_choice="required", max_output_tokens=100
).output
