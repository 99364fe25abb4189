"""A shadow of the device's KV pool: what each slot's key and value depend on.

That is the salt and all tokens up to the position. Writes and copies are replayed as the device
does them.
"""

from paged_jax.host.request import ScheduledStep, Sequence

BLOCK_SIZE = 4
Content = tuple[str | None, tuple[int, ...]]
Pending = dict[Sequence, tuple[int, ...]]  # what the step before draws and the host does not know


class ShadowPool:
    """Slot -> what was written there last."""

    def __init__(self) -> None:
        self.slots: dict[int, Content] = {}

    def slot(self, sequence: Sequence, position: int) -> int:
        return sequence.block_table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE

    def pack(self, step: ScheduledStep, pending: Pending) -> list[tuple[int, Content]]:
        """What the step is going to write, fixed at launch: the host may change while it runs."""
        return [
            (self.slot(chunk.sequence, position), content(chunk.sequence, position, pending))
            for chunk in step.chunks
            for position in range(chunk.start, chunk.start + chunk.length)
        ]

    def run(self, copies: tuple[tuple[int, int], ...], writes: list[tuple[int, Content]]) -> None:
        """All copies at once, from what was there before; then all writes."""
        old = dict(self.slots)
        for source, target in copies:
            for offset in range(BLOCK_SIZE):
                moved = old.get(source * BLOCK_SIZE + offset, (None, ()))
                self.slots[target * BLOCK_SIZE + offset] = moved
        self.slots.update(writes)

    def verify(self, sequence: Sequence, end: int) -> None:
        for position in range(end):
            assert self.slots[self.slot(sequence, position)] == content(sequence, position)

    def verify_block(self, block: int, index: int, tokens: tuple[int, ...], salt: str | None):
        for offset in range(BLOCK_SIZE):
            stop = index * BLOCK_SIZE + offset + 1
            assert self.slots[block * BLOCK_SIZE + offset] == (salt, tokens[:stop])


def content(sequence: Sequence, position: int, pending: Pending | None = None) -> Content:
    tokens = sequence.tokens(0, position + 1)
    if len(tokens) <= position:
        tokens += (pending or {})[sequence]
    return sequence.request.cache_salt, tokens
