# llm==0.36
import os
import tempfile
from pathlib import Path

os.environ["LLM_USER_PATH"] = tempfile.mkdtemp()
Path(os.environ["LLM_USER_PATH"], "extra-openai-models.yaml").write_text("""
- model_id: draftwood
  model_name: smollm2
  api_base: http://127.0.0.1:8000/v1
  supports_schema: true
  supports_tools: true
""")

import llm  # noqa: E402

model = llm.get_model("draftwood")
model.key = "none"

# ---- plain ----
print(model.prompt("What is the capital of France?", stream=False, max_tokens=30).text())

# ---- stream ----
for text in model.prompt("What is the capital of France?", max_tokens=30):
    print(text, end="")

# ---- structured output ----
schema = llm.schema_dsl("name, country")
print(model.prompt("What is the capital of France?", schema=schema, temperature=0, stream=False).text())


# ---- tools ----
def weather(city: str) -> str:
    """The weather of a city."""
    return f"It rains in {city}."


print(model.prompt("How is the weather in Oslo?", tools=[weather], stream=False, max_tokens=50).text())
