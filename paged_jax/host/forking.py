"""Where a request may fork from a live sequence, and what it takes over."""

from collections.abc import Sequence as Seq

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.request import Request, Sequence


def find_choice(live: Seq[Sequence], request_id: str, choice: int) -> Sequence:
    """Return the sequence that generates a choice of a request.

    Raises:
        InvalidRequest: the request or the choice is not being generated.
    """
    found = [sequence for sequence in live if sequence.index == choice]
    if found:
        return found[0]
    if not live:
        raise InvalidRequest(
            f"request {request_id!r} is not running: add its tokens as a prompt, and what the"
            " prefix cache still holds of them is reused",
            "request_id",
        )
    indices = ", ".join(str(sequence.index) for sequence in live)
    raise InvalidRequest(
        f"choice {choice} of request {request_id!r} is not running: choose from {indices}", "choice"
    )


def first_tokens(parent: Sequence, at: int | None) -> tuple[int, ...]:
    """Return the first `at` tokens of a sequence; None is all that are known.

    Raises:
        InvalidRequest: it does not have as many.
    """
    at = parent.num_tokens if at is None else at
    if not 1 <= at <= parent.num_tokens:
        raise InvalidRequest(
            f"at is {at} but must be between 1 and {parent.num_tokens}, the tokens so far", "at"
        )
    return parent.tokens(0, at)


def num_shareable(parent: Sequence, request: Request) -> int:
    """Return how many of the parent's computed tokens the request can begin with.

    Its last prompt token is always computed, and all are where each is needed. Other salts mean
    other owners, or keys that depend on the prompt's length.
    """
    prompt = request.prompt
    if request.sampling.needs_whole_prompt or request.cache_salt != parent.request.cache_salt:
        return 0
    if prompt != parent.tokens(0, len(prompt)):
        return 0
    return min(parent.num_computed, len(prompt) - 1)
