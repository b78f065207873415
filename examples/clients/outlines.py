# outlines==1.3.3 openai==3.57.0
import openai
import outlines
from pydantic import BaseModel

client = openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
model = outlines.from_openai(client, "smollm2")

# ---- plain ----
print(model("What is the capital of France?", max_tokens=30))

# ---- stream ----
for text in model.stream("What is the capital of France?", max_tokens=30):
    print(text, end="")


# ---- structured output ----
class City(BaseModel):
    name: str
    country: str


print(City.model_validate_json(model("What is the capital of France?", City, temperature=0)).name)
vllm = outlines.from_vllm(client, "smollm2")
print(City.model_validate_json(vllm("What is the capital of France?", City, temperature=0)).name)
