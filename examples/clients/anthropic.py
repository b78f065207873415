# anthropic==2.14.0
from anthropic import Anthropic
from pydantic import BaseModel

client = Anthropic(base_url="http://127.0.0.1:8000", api_key="none")
coldest = {"extra_body": {"temperature": 0}}
question = [{"role": "user", "content": "What is the capital of France?"}]

# ---- plain ----
print(client.messages.create(model="smollm2", max_tokens=30, messages=question).content[0].text)

# ---- stream ----
with client.messages.stream(model="smollm2", max_tokens=30, messages=question) as stream:
    for text in stream.text_stream:
        print(text, end="")


# ---- structured output ----
class City(BaseModel):
    name: str
    country: str


print(
    client.messages.parse(
        model="smollm2", max_tokens=200, messages=question, output_format=City, **coldest
    ).parsed_output.name
)

# ---- tools ----
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"name": "weather", "description": "The weather of a city.", "input_schema": schema}]
answer = client.messages.create(model="smollm2", max_tokens=100, messages=question, tools=tools, tool_choice={"type": "any"})
print(answer.content[0].input["city"])
