# guidance==0.3.1 openai==3.57.0
from guidance import assistant, gen, select, user
from guidance import json as json_of
from guidance.models.experimental import VLLMModel
from pydantic import BaseModel

chat = VLLMModel("smollm2", base_url="http://127.0.0.1:8000/v1", api_key="none", echo=False)
chat._interpreter.log_probs = False  # else the text has the end of the turn, where it comes with the last words
with user():
    chat += "What is the capital of France?"

# ---- plain ----
with assistant():
    print((chat + gen("answer", max_tokens=30))["answer"])


# ---- structured output ----
class City(BaseModel):
    name: str
    country: str


with assistant():
    print(City.model_validate_json((chat + json_of("city", schema=City))["city"]).name)
with assistant():
    print((chat + select(["Paris", "Rome"], name="capital"))["capital"])
