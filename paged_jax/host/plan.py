"""A step in the making: what `ScheduledStep` will say, while it can still be taken back."""

import sys
from collections.abc import Set
from dataclasses import dataclass, field

from paged_jax.host.request import Chunk, ScheduledStep, Sequence

BlockCopy = tuple[int, int]


@dataclass
class StepPlan:
    """Collects one step. A sequence preempted on the way loses its chunk and its copy again.

    Attributes:
        budget: tokens that may still be planned.
        max_chunks: sequences that may take part.
        awaited: sequences that a step in flight draws for; they do not take part.
        copies: (source block, target block) by the sequence that is going to write the target. All
            sources are read before any target is written, so a block freed by one sequence may be
            the target of another.
    """

    budget: int
    max_chunks: int = sys.maxsize
    awaited: Set[Sequence] = frozenset()
    chunks: dict[Sequence, Chunk] = field(default_factory=dict[Sequence, Chunk])
    copies: dict[Sequence, BlockCopy] = field(default_factory=dict[Sequence, BlockCopy])
    preempted: list[Sequence] = field(default_factory=list[Sequence])

    @property
    def is_full(self) -> bool:
        """Whether nothing more can be planned."""
        return self.budget == 0 or len(self.chunks) >= self.max_chunks

    def add(self, chunk: Chunk, copy: BlockCopy | None) -> None:
        """Plan a chunk and the copy that has to come before its writes."""
        self.chunks[chunk.sequence] = chunk
        self.budget -= chunk.length
        if copy is not None:
            self.copies[chunk.sequence] = copy

    def preempt(self, sequence: Sequence) -> None:
        """Take back what was planned for a sequence."""
        self.preempted.append(sequence)
        self.copies.pop(sequence, None)
        chunk = self.chunks.pop(sequence, None)
        if chunk is not None:
            self.budget += chunk.length

    def close(self) -> ScheduledStep:
        """Return the finished plan."""
        assert self.budget >= 0, "the step is over its token budget"
        return ScheduledStep(
            chunks=tuple(self.chunks.values()),
            copies=tuple(self.copies.values()),
            preempted=tuple(self.preempted),
        )
