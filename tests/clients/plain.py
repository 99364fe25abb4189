"""What the scripts share: the server's address, its model, and answers got without a client."""

import importlib.metadata
import json
import os
import sys
import urllib.request

BASE_URL = os.environ.get("BASE_URL", "http://127.0.0.1:8000")
TOKENIZER = os.environ.get("TOKENIZER", "")
QUESTION = "What is the capital of France?"
SKIPPED = 77


def need(package: str) -> str:
    """Return a package's version, or end the script as skipped."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        skip(f"{package} is not installed")


def skip(reason: str) -> None:
    print(reason, file=sys.stderr)
    sys.exit(SKIPPED)


def ask(path: str, body: dict | None = None) -> dict:
    """Return the server's answer."""
    data = None if body is None else json.dumps(body).encode()
    key = os.environ.get("OPENAI_API_KEY", "none")
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with urllib.request.urlopen(urllib.request.Request(BASE_URL + path, data, headers)) as answer:
        return json.load(answer)


def model() -> str:
    return ask("/v1/models")["data"][0]["id"]


def greedy(question: str = QUESTION, max_tokens: int = 16) -> dict:
    """Return the whole answer to a question."""
    messages = [{"role": "user", "content": question}]
    body = {"messages": messages, "temperature": 0, "max_tokens": max_tokens}
    return ask("/v1/chat/completions", body)


def text_of(answer: dict) -> str:
    return answer["choices"][0]["message"]["content"]
