"""When a sequence is over, as far as token ids tell; stop strings are found where there is text."""

from paged_jax.host.request import FinishReason, Sequence


def ending(sequence: Sequence, *, max_len: int) -> tuple[FinishReason | None, int | None]:
    """Return why the sequence ends with its last token, if it does.

    Args:
        max_len: longest prompt plus answer, in tokens.

    Returns:
        The reason, and the token id if it is one of the request's own stop ids.
    """
    request, token = sequence.request, sequence.output[-1]
    if len(sequence.output) >= request.sampling.min_tokens:
        if token in request.eos_ids and not request.sampling.ignore_eos:
            return FinishReason.STOP, None
        if token in request.sampling.stop_ids:
            return FinishReason.STOP, token
    if _is_full(sequence, max_len):
        return FinishReason.LENGTH, None
    return None, None


def num_ready(sequence: Sequence, *, max_len: int) -> int:
    """Return how many missing tokens may be computed in one step.

    None after a pending token that is sure to end the sequence, or that the choices begin with.
    """
    if sequence.num_pending and (sequence.fork_pending or _is_full(sequence, max_len)):
        return 0
    return min(sequence.num_missing, sequence.request.chunk_limit)


def _is_full(sequence: Sequence, max_len: int) -> bool:
    """Whether the last token, pending or not, ends the sequence by length whatever it is."""
    num_output = len(sequence.output) + sequence.num_pending
    num_tokens = sequence.num_tokens + sequence.num_pending
    return num_output >= sequence.request.max_tokens or num_tokens >= max_len
