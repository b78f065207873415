# pydantic-ai-slim[openai]==2.68.0
import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url="http://127.0.0.1:8000/v1", api_key="none")
model = OpenAIChatModel("smollm2", provider=provider, settings={"max_tokens": 100, "temperature": 0})


class City(BaseModel):
    name: str
    country: str


# ---- plain ----
print(Agent(model).run_sync("What is the capital of France?").output)


# ---- stream ----
async def main() -> None:
    async with Agent(model).run_stream("What is the capital of France?") as answer:
        async for text in answer.stream_text(delta=True):
            print(text, end="")


asyncio.run(main())

# ---- structured output ----
print(Agent(model, output_type=NativeOutput(City)).run_sync("What is the capital of France?").output.name)

# ---- tools ----
print(Agent(model, output_type=City).run_sync("What is the capital of France?").output.name)
