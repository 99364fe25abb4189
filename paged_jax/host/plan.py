"""A step in the making: what `ScheduledStep` will say, while it can still be taken back."""

import sys
from collections.abc import Set
from dataclasses import dataclass, field

from paged_jax.host.queues import Queues
from paged_jax.host.request import Chunk, ScheduledStep, Sequence, Status
from paged_jax.host.tables import BlockTables

BlockCopy = tuple[int, int]


@dataclass
class StepPlan:
    """Collects one step. A sequence preempted on the way loses its chunk and its copy again.

    Attributes:
        tables: give blocks to what is planned, and take them from who is preempted.
        queues: say who is last in the order of service.
        budget: tokens that may still be planned.
        max_chunks: sequences that may take part.
        awaited: sequences that a step in flight draws for; they do not take part.
        copies: (source block, target block) by the sequence that is going to write the target. All
            sources are read before any target is written, so a block freed by one sequence may be
            the target of another.
    """

    tables: BlockTables
    queues: Queues
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

    def make_room(self, sequence: Sequence, length: int) -> bool:
        """Preempt until the blocks for a running sequence's next `length` tokens are free.

        Returns whether they are; if not, the sequence has been preempted itself.
        """
        while not self.tables.can_grow(sequence, length):
            self.preempt_last()
            if sequence.status is not Status.RUNNING:
                return False
        return True

    def place(self, sequence: Sequence, length: int, copy: BlockCopy | None = None) -> None:
        """Plan a sequence's next `length` tokens; their blocks are known to be free.

        Args:
            copy: has to come before their writes.
        """
        start, is_last = sequence.num_computed, length == sequence.num_missing
        num_samples = sequence.num_samples if is_last else 0
        copy = self.tables.grow(sequence, length) or copy
        self.chunks[sequence] = Chunk(sequence, start, length, num_samples)
        self.budget -= length
        if copy is not None:
            self.copies[sequence] = copy

    def preempt_last(self) -> None:
        """Take the blocks of the running sequence that is last in the order of service.

        Its output stays and is computed again later. Beams go together, as none can go on without
        the others.
        """
        last = self.queues.last_running()
        is_beam = last.request.sampling.beams is not None
        for sequence in self.queues.of_request[last.request.id] if is_beam else [last]:
            if sequence.status is Status.RUNNING:
                self._preempt(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self.preempted.append(sequence)
        self.copies.pop(sequence, None)
        chunk = self.chunks.pop(sequence, None)
        if chunk is not None:
            self.budget += chunk.length
        self.tables.release(sequence)
        sequence.num_computed = sequence.num_pending = 0
        sequence.num_preemptions += 1
        self.queues.unseat(sequence)

    def close(self) -> ScheduledStep:
        """Return the finished plan."""
        assert self.budget >= 0, "the step is over its token budget"
        return ScheduledStep(
            chunks=tuple(self.chunks.values()),
            copies=tuple(self.copies.values()),
            preempted=tuple(self.preempted),
        )
