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
    if len(sequence.output) >= request.max_tokens or sequence.num_tokens >= max_len:
        return FinishReason.LENGTH, None
    return None, None
