# instructor==1.17.0
import instructor
from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
question = [{"role": "user", "content": "What is the capital of France?"}]


class City(BaseModel):
    name: str
    country: str


# ---- structured output ----
schemas = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
print(schemas.chat.completions.create(model="smollm2", messages=question, response_model=City, temperature=0).name)

# ---- stream ----
schemas = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
for city in schemas.chat.completions.create_partial(model="smollm2", messages=question, response_model=City, temperature=0):
    print(city)

# ---- tools ----
print(
    instructor.from_openai(client)
    .chat.completions.create(model="smollm2", messages=question, response_model=City, temperature=0)
    .name
)
