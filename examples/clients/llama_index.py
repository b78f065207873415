# llama-index-llms-openai-like==0.8.1
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

where = {"api_base": "http://127.0.0.1:8000/v1", "api_key": "none", "is_chat_model": True, "max_tokens": 100}
model = OpenAILike(model="smollm2", is_function_calling_model=True, temperature=0, **where)
question = [ChatMessage(role="user", content="What is the capital of France?")]

# ---- plain ----
print(model.chat(question).message.content)

# ---- stream ----
for part in model.stream_chat(question):
    print(part.delta, end="")


# ---- structured output ----
class City(BaseModel):
    name: str
    country: str


print(model.as_structured_llm(City).chat(question).raw.name)


# ---- tools ----
def weather(city: str) -> str:
    """The weather of a city."""
    return f"It rains in {city}."


answer = model.chat_with_tools([FunctionTool.from_defaults(weather)], user_msg="Weather in Oslo?", tool_required=True)
print(model.get_tool_calls_from_response(answer)[0].tool_kwargs)
