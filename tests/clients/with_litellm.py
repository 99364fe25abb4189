"""litellm: chat whole and streamed, and a completion, by both of its names for such servers."""

import os

from plain import BASE_URL, QUESTION, ask, greedy, model, need, text_of

version = need("litellm")
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm  # noqa: E402

expected, name = greedy(), model()
messages = [{"role": "user", "content": QUESTION}]
settings = {"api_base": f"{BASE_URL}/v1", "api_key": "none", "temperature": 0, "max_tokens": 16}
for prefix in ("openai", "hosted_vllm"):
    full = f"{prefix}/{name}"
    whole = litellm.completion(model=full, messages=messages, **settings)
    assert whole.choices[0].message.content == text_of(expected)
    assert whole.usage.completion_tokens == expected["usage"]["completion_tokens"]
    pieces = litellm.completion(model=full, messages=messages, stream=True, **settings)
    said = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert said == text_of(expected)
plain = ask("/v1/completions", {"prompt": QUESTION, "temperature": 0, "max_tokens": 16})
text = (
    litellm.text_completion(model=f"text-completion-openai/{name}", prompt=QUESTION, **settings)
    .choices[0]
    .text
)
assert text == plain["choices"][0]["text"]
print(f"litellm {version}: {said!r}")
