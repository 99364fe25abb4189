"""What a step costs: a linear model of its seconds, and the sizes of a step that it counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paged_jax.host.buckets import pick
from paged_jax.host.request import ScheduledStep


class StepSize(NamedTuple):
    """What one step computes.

    Attributes:
        tokens: new ones, of all sequences.
        seqs: sequences of it.
        context: tokens whose keys and values are read, over all sequences: a prefix that some
            share counts for each, though the CPU kernels read it once for many.
        pairs: pairs of a new token and a token it sees, over all chunks longer than one.
        padding: rows that the program has beyond the tokens, since it comes in few sizes.
    """

    tokens: int
    seqs: int
    context: int
    pairs: int = 0
    padding: int = 0


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step: a fixed part, and so much for each of what StepSize counts."""

    fixed_s: float
    token_s: float
    seq_s: float
    context_s: float
    pair_s: float = 0.0
    padding_s: float = 0.0

    def seconds(self, size: StepSize) -> float:
        """Return how long a step takes."""
        return (
            self.fixed_s
            + self.token_s * size.tokens
            + self.seq_s * size.seqs
            + self.context_s * size.context
            + self.pair_s * size.pairs
            + self.padding_s * size.padding
        )


COSTS = {
    # SmolLM2-135M on two cores without bfloat16 instructions, by the log of 2026-11-29: 16 ms a
    # step of one sequence, 183 ms of 64 with 192 tokens each, 0.86 s for the products of 512.
    "two-cores": StepCost(0.0135, 1.65e-3, 0.45e-3, 2.4e-6, 0.6e-6, 1.65e-3),
    # A floor, not a measurement: 8 billion parameters in bfloat16 on an H200, 16 GB read at 4 TB/s,
    # products at 600 TFLOP/s, 131 KB of keys and values for each token.
    "h200-8b-floor": StepCost(4.0e-3, 27e-6, 1e-6, 33e-9, 0.9e-9, 27e-6),
}


def size_of(step: ScheduledStep, buckets: Sequence[int], *, num_padding: int = 0) -> StepSize:
    """Return a step's sizes.

    Args:
        buckets: sizes to which packed tokens are padded.
        num_padding: further sequences that are computed along with one token each.
    """
    pairs = context = num_tokens = 0
    for _, start, length, _ in step.chunks:
        context += start + length
        num_tokens += length
        if length > 1:
            pairs += length * start + length * (length + 1) // 2
    num_seqs, num_tokens = len(step.chunks) + num_padding, num_tokens + num_padding
    padding = pick(buckets, num_tokens) - num_tokens
    return StepSize(num_tokens, num_seqs, context, pairs, padding)
