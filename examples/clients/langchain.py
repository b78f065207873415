# langchain-openai==1.7.4
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

model = ChatOpenAI(model="smollm2", base_url="http://127.0.0.1:8000/v1", api_key="none", temperature=0, max_tokens=100)

# ---- plain ----
print(model.invoke("What is the capital of France?").content)

# ---- stream ----
for chunk in model.stream("What is the capital of France?"):
    print(chunk.content, end="")


# ---- structured output ----
class City(BaseModel):
    name: str
    country: str


print(model.with_structured_output(City).invoke("What is the capital of France?").name)


# ---- tools ----
@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"It rains in {city}."


print(model.bind_tools([weather], tool_choice="required").invoke("How is the weather in Oslo?").tool_calls[0])
