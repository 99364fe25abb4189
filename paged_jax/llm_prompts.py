"""The prompts that `LLM` takes, in all their forms, as token ids."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.text.tokenizer import Tokenizer

Prompt = str | Seq[int] | Mapping[str, object]


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as it goes to the engine; `text` is None where ids were given."""

    text: str | None
    ids: list[int]
    cache_salt: str | None = None


def encode_prompts(prompts: Prompt | Seq[Prompt], tokenizer: Tokenizer) -> list[EncodedPrompt]:
    """Return one prompt or several as token ids, in order.

    Raises:
        InvalidRequest: one is of no form that there is, or empty.
    """
    return [_encoded(prompt, tokenizer) for prompt in _listed(prompts)]


def _listed(prompts: Prompt | Seq[Prompt]) -> list[Prompt]:
    """Bring one prompt or several to a list of prompts."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    listed = list(prompts)
    if listed and isinstance(listed[0], int):
        return [listed]  # type: ignore[list-item]
    return listed  # type: ignore[return-value]


def _encoded(prompt: Prompt, tokenizer: Tokenizer) -> EncodedPrompt:
    salt = None
    if isinstance(prompt, Mapping):
        salt = prompt.get("cache_salt")
        if salt is not None and not isinstance(salt, str):
            raise InvalidRequest("cache_salt must be a string", "cache_salt")
        prompt = prompt.get("prompt_token_ids") or prompt.get("prompt")  # type: ignore[assignment]
    if isinstance(prompt, str):
        return EncodedPrompt(prompt, tokenizer.encode(prompt), salt)
    if isinstance(prompt, Seq) and prompt:
        return EncodedPrompt(None, [_id(token) for token in prompt], salt)
    raise InvalidRequest("prompt must be a text or a list of token ids, not empty", "prompt")


def _id(token: object) -> int:
    """Take any integer type (numpy's too) as a token id."""
    if isinstance(token, bool) or not hasattr(token, "__index__"):
        raise InvalidRequest(f"prompt must hold whole token ids, not {token!r}", "prompt")
    return token.__index__()  # type: ignore[attr-defined]
