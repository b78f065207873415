# smolagents[openai]==1.26.0
from smolagents import OpenAIModel, ToolCallingAgent, tool

model = OpenAIModel(model_id="smollm2", api_base="http://127.0.0.1:8000/v1", api_key="none", temperature=0, max_tokens=200)
question = [{"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]}]

# ---- plain ----
print(model.generate(question).content)

# ---- stream ----
for part in model.generate_stream(question):
    print(part.content or "", end="")


# ---- tools ----
@tool
def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name.
    """
    return f"It rains in {city}."


agent = ToolCallingAgent(tools=[weather], model=model, max_steps=1)
agent.run("How is the weather in Oslo?")
assert agent.memory.steps[-1].error is None or agent.memory.steps[-1].tool_calls, agent.memory.steps[-1].error
