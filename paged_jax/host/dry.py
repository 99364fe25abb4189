"""DRY: a penalty on tokens that would go on with a repetition, the more the longer it is already.

Source: p-e-w 2024, "DRY: A modern repetition penalty", text-generation-webui pull request 5677.
"""

from collections.abc import Sequence

MAX_DRY_IDS = 256  # ids penalised at once: the strongest
MAX_PENALTY = 1e6
DEFAULT_BREAKERS = ("\n", ":", '"', "*")


def dry_penalties(
    ids: Sequence[int],
    *,
    multiplier: float,
    base: float,
    allowed_len: int,
    breakers: frozenset[int] = frozenset(),
) -> dict[int, float]:
    """Return what is taken off the logits after `ids`: multiplier * base ** (length - allowed).

    The length is that of the longest run that ended in the id before and that `ids` ends with now.

    Args:
        allowed_len: shorter repetitions are free.
        breakers: ids that no repetition reaches across.
    """
    longest: dict[int, int] = {}
    limit = next((at for at, token in enumerate(reversed(ids)) if token in breakers), len(ids))
    for token, length in zip(ids[1:], _match_lens(ids), strict=False):
        if token not in breakers and min(length, limit) >= max(1, allowed_len):
            longest[token] = max(longest.get(token, 0), min(length, limit))
    strongest = sorted(longest, key=lambda token: -longest[token])[:MAX_DRY_IDS]
    return {
        token: min(MAX_PENALTY, multiplier * _power(base, longest[token] - allowed_len))
        for token in strongest
    }


def _power(base: float, exponent: int) -> float:
    try:
        return base**exponent
    except OverflowError:
        return MAX_PENALTY


def _match_lens(ids: Sequence[int]) -> list[int]:
    """For each position how many ids up to it equal those at the end: the Z function, reversed.

    In linear time. Source: Gusfield 1997, Algorithms on Strings, Trees and Sequences, section 1.4.
    """
    text, count = ids[::-1], len(ids)
    lens = [0] * count
    left = right = 0
    for at in range(1, count):
        length = min(right - at, lens[at - left]) if at < right else 0
        while at + length < count and text[length] == text[at + length]:
            length += 1
        lens[at] = length
        if at + length > right:
            left, right = at, at + length
    return lens[::-1]
