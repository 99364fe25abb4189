"""A step on its way: launched on the device, read when the host needs what it drew."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np

from paged_jax.device.logprobs import SampleOutput
from paged_jax.engine.answers import LogprobTables
from paged_jax.engine.tap_book import TapReads
from paged_jax.host.request import ScheduledStep, Sequence
from paged_jax.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class LaunchedStep:
    """One launched step.

    Attributes:
        start_s: when it was begun, on the monotonic clock.
        out: what it draws; None if it draws nothing.
        reads: what taps read of it, if any do.
    """

    work: ScheduledStep
    start_s: float
    out: SampleOutput | None
    reads: TapReads | None = None

    def start_copying(self) -> None:
        """Let what it draws come to the host as soon as it is there."""
        wanted = self.out if self.has_logprobs else self.out and self.out.tokens
        for leaf in jax.tree.leaves(wanted):
            if isinstance(leaf, jax.Array):
                leaf.copy_to_host_async()

    @cached_property
    def has_logprobs(self) -> bool:
        """Whether anybody asked for the log-probabilities of its draws."""
        return any(sampling.logprobs is not None for sampling in self._sampling)

    @cached_property
    def needs_reading(self) -> bool:
        """Whether the next step needs its draws on the host."""
        return self.work.needs_reading

    @property
    def _sampling(self):
        return (c.sequence.request.sampling for c in self.work.chunks if c.num_samples)

    def rows(self) -> Mapping[Sequence, int]:
        """Return the first row that each sequence draws."""
        rows, at = dict[Sequence, int](), 0
        for chunk in self.work.chunks:
            rows[chunk.sequence] = at
            at += chunk.num_samples
        return rows

    def read(self) -> list[list[int]]:
        """Wait for the drawn ids; return those of each chunk."""
        if self.out is None:
            return [[] for _ in self.work.chunks]
        drawn = iter(np.asarray(self.out.tokens).tolist())
        return [[next(drawn) for _ in range(c.num_samples)] for c in self.work.chunks]

    def logprobs(self, tokenizer: Tokenizer) -> LogprobTables | None:
        """Return the log-probabilities, if anybody asked for them."""
        return LogprobTables(self.out, tokenizer) if self.out and self.has_logprobs else None
