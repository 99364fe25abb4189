"""instructor: an answer that is an object of a class, whatever the model would rather say."""

from plain import BASE_URL, model, need

version = need("instructor")
import instructor  # noqa: E402
from openai import OpenAI  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402


class City(BaseModel, extra="forbid"):  # or else a small model goes on and on
    name: str = Field(max_length=20)
    is_capital: bool


client = instructor.from_openai(OpenAI(base_url=f"{BASE_URL}/v1"), mode=instructor.Mode.JSON_SCHEMA)
city = client.chat.completions.create(
    model=model(),
    response_model=City,
    messages=[{"role": "user", "content": "Paris is the capital of France. Describe Paris."}],
    temperature=0,
    max_tokens=100,
    max_retries=0,
)
assert isinstance(city, City)
print(f"instructor {version}: {city!r}")
