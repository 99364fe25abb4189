"""The few padded sizes a step may have, so that only a known set of programs is ever compiled."""

from collections.abc import Sequence

HALF_WAY = (48, 96, 192, 384)


def token_buckets(max_tokens: int, *, smallest: int = 2) -> tuple[int, ...]:
    """Return the sizes for packed tokens: 2, then powers of two from 8, ending in max_tokens.

    From 32 to 512 half-way steps lie between them, where padding costs the most time: 64 decodes
    with a short prompt beside them take 96 rows, not 128.

    One token is padded to two: with a single row XLA:CPU copies every weight matrix at each step
    (measured on SmolLM2: 820 ms and 1.8 GiB against 30 ms). With the CPU kernels the smallest is 1.
    """
    whole = _ladder(max_tokens, (smallest, 8), factor=2)
    halves = (size for size in HALF_WAY if size < max_tokens)
    return tuple(sorted({*whole, *halves}))


def row_buckets(max_rows: int) -> tuple[int, ...]:
    """Return the sizes for sampled rows: powers of four, ending in max_rows."""
    return _ladder(max_rows, (4,), factor=4)


def pick(buckets: Sequence[int], n: int) -> int:
    """Return the smallest of the ascending buckets that holds n."""
    for size in buckets:
        if size >= n:
            return size
    raise ValueError(f"{n} is beyond the largest bucket, {buckets[-1]}")


def _ladder(limit: int, first: Sequence[int], *, factor: int) -> tuple[int, ...]:
    """The first sizes, then each times factor, as far as below limit, then limit."""
    if limit < 1:
        raise ValueError(f"the largest bucket must be at least 1, not {limit}")
    sizes = list(first)
    while sizes[-1] < limit:
        sizes.append(sizes[-1] * factor)
    return (*(size for size in sizes if size < limit), limit)
