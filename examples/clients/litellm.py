# litellm==1.110.2
import json

import litellm
from pydantic import BaseModel

where = {"model": "openai/smollm2", "api_base": "http://127.0.0.1:8000/v1", "api_key": "none", "temperature": 0}
question = [{"role": "user", "content": "What is the capital of France?"}]

# ---- plain ----
print(litellm.completion(**where, messages=question, max_tokens=30).choices[0].message.content)

# ---- stream ----
for chunk in litellm.completion(**where, messages=question, max_tokens=30, stream=True):
    print(chunk.choices[0].delta.content or "", end="")


# ---- structured output ----
class City(BaseModel):
    name: str
    country: str


answer = litellm.completion(**where, messages=question, response_format=City)
print(json.loads(answer.choices[0].message.content)["name"])

# ---- tools ----
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
answer = litellm.completion(**where, messages=question, tools=tools, tool_choice="required", max_tokens=100)
print(answer.choices[0].message.tool_calls[0].function)
