"""The few padded sizes a step may have, so that only a known set of programs is ever compiled."""

from collections.abc import Sequence

SMALLEST_TOKENS = 8


def token_buckets(max_tokens: int) -> tuple[int, ...]:
    """Return the sizes for packed tokens: powers of two from 8, ending in max_tokens.

    One token is padded to 8: XLA's CPU products with a single row are many times slower.
    """
    return _ladder(max_tokens, first=SMALLEST_TOKENS, factor=2)


def row_buckets(max_rows: int) -> tuple[int, ...]:
    """Return the sizes for sampled rows: powers of four, ending in max_rows."""
    return _ladder(max_rows, first=4, factor=4)


def pick(buckets: Sequence[int], n: int) -> int:
    """Return the smallest of the ascending buckets that holds n."""
    for size in buckets:
        if size >= n:
            return size
    raise ValueError(f"{n} is beyond the largest bucket, {buckets[-1]}")


def _ladder(limit: int, *, first: int, factor: int) -> tuple[int, ...]:
    """first, first * factor, ... as far as below limit, then limit."""
    if limit < 1:
        raise ValueError(f"the largest bucket must be at least 1, not {limit}")
    sizes: list[int] = []
    step = first
    while step < limit:
        sizes.append(step)
        step *= factor
    return (*sizes, limit)
