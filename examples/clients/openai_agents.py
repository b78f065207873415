# openai-agents==0.24.0
import asyncio

from agents import Agent, ModelSettings, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel

set_default_openai_client(AsyncOpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none"), use_for_tracing=False)
set_tracing_disabled(True)
settings = ModelSettings(temperature=0, max_tokens=100)

# ---- plain ----
agent = Agent(name="Helper", instructions="Be brief.", model="smollm2", model_settings=settings)
print(Runner.run_sync(agent, "What is the capital of France?").final_output)


# ---- stream ----
async def main() -> None:
    agent = Agent(name="Helper", instructions="Be brief.", model="smollm2", model_settings=settings)
    async for event in Runner.run_streamed(agent, "What is the capital of France?").stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            print(event.data.delta, end="")


asyncio.run(main())


# ---- structured output ----
class City(BaseModel):
    name: str
    country: str


agent = Agent(name="Helper", model="smollm2", model_settings=settings, output_type=City)
print(Runner.run_sync(agent, "What is the capital of France?").final_output.name)


# ---- tools ----
@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"It rains in {city}."


required = ModelSettings(temperature=0, max_tokens=100, tool_choice="required")
agent = Agent(name="Helper", model="smollm2", model_settings=required, tools=[weather])
print(Runner.run_sync(agent, "How is the weather in Oslo?", max_turns=3).final_output)
