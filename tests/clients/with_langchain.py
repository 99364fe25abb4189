"""langchain-openai: whole, streamed and batched answers are the plain ones; usage is read."""

from plain import BASE_URL, QUESTION, greedy, model, need, text_of

version = need("langchain-openai")
from langchain_openai import ChatOpenAI  # noqa: E402

chat = ChatOpenAI(
    base_url=f"{BASE_URL}/v1", model=model(), temperature=0, max_tokens=16, stream_usage=True
)
expected = greedy()
whole = chat.invoke(QUESTION)
assert whole.content == text_of(expected)
assert whole.usage_metadata["output_tokens"] == expected["usage"]["completion_tokens"]
pieces = list(chat.stream(QUESTION))
assert "".join(piece.content for piece in pieces) == whole.content and len(pieces) > 3
assert any(piece.usage_metadata for piece in pieces)
assert {answer.content for answer in chat.batch([QUESTION] * 4)} == {whole.content}
print(f"langchain-openai {version}: {whole.content!r}")
