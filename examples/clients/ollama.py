# ollama==0.6.3
from ollama import Client

client = Client(host="http://127.0.0.1:8000")
question = [{"role": "user", "content": "What is the capital of France?"}]

# ---- plain ----
print(client.chat(model="smollm2", messages=question, options={"num_predict": 30}).message.content)
assert client.generate(model="smollm2", prompt="Hello", options={"num_predict": 10}).response
assert client.list().models[0].model == "smollm2"

# ---- stream ----
for part in client.chat(model="smollm2", messages=question, options={"num_predict": 30}, stream=True):
    print(part.message.content, end="")

# ---- structured output ----
schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"], "additionalProperties": False}
print(client.chat(model="smollm2", messages=question, format=schema, options={"temperature": 0}).message.content)


# ---- tools ----
def weather(city: str) -> str:
    """The weather of a city."""
    return f"It rains in {city}."


answer = client.chat(model="smollm2", messages=question, tools=[weather], options={"num_predict": 30})
print(answer.message.tool_calls or answer.message.content)
