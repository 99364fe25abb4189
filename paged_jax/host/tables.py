"""How sequences hold blocks: block tables that grow, share blocks and copy them on write.

Invariant: a sequence holds exactly the blocks of its computed tokens, so only its last block can be
partly its own, and that is the only block that it may have to copy before it writes.
"""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from paged_jax.host.blocks import BlockPool
from paged_jax.host.request import Sequence
from paged_jax.host.trace import PoolUsage


class BlockTables:
    """Moves blocks between the pool and the sequences' block tables."""

    def __init__(self, pool: BlockPool, block_size: int):
        self._pool = pool
        self._block_size = block_size

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks a sequence of so many tokens holds."""
        return -(-num_tokens // self._block_size)

    def can_start(self, sequence: Sequence, hits: Seq[int]) -> bool:
        """Return whether all the sequence's present tokens, not just its next chunk, find room."""
        num_idle = sum(self._pool.ref_count(block) == 0 for block in hits)
        needed = self.num_blocks_for(sequence.num_tokens) - len(hits) + num_idle
        return needed <= self._pool.num_free

    def start(self, sequence: Sequence, hits: list[int]) -> None:
        """Let an empty sequence begin with the cached blocks of its prefix."""
        self._pool.acquire(hits)
        sequence.block_table, sequence.num_published = hits, len(hits)
        sequence.num_computed = len(hits) * self._block_size

    def start_inside(self, sequence: Sequence, source: int, length: int) -> tuple[int, int]:
        """Let a started sequence go on with the first tokens of a cached block, in one of its own.

        Returns the (source, target) of the block copy.
        """
        self._pool.touch(source)
        [target] = self._pool.allocate(1)
        sequence.block_table.append(target)
        sequence.num_computed += length
        return source, target

    def can_grow(self, sequence: Sequence, length: int) -> bool:
        """Return whether the blocks for the next `length` tokens are free."""
        return self._num_new_blocks(sequence, length) <= self._pool.num_free

    def grow(self, sequence: Sequence, length: int) -> tuple[int, int] | None:
        """Add the blocks for the next `length` tokens and count these as computed.

        Returns the (source, target) of the block copy that has to come before their writes, if any.
        """
        num_new, needs_copy = self._num_new_blocks(sequence, length), self._needs_copy(sequence)
        copy = None
        sequence.num_computed += length
        if num_new == 0:
            return None
        blocks = self._pool.allocate(num_new)
        if needs_copy:
            source, target = sequence.block_table[-1], blocks.pop(0)
            self._pool.release([source])
            sequence.block_table[-1] = target
            copy = (source, target)
        sequence.block_table += blocks
        return copy

    def share(self, parent: Sequence, child: Sequence, length: int | None = None) -> None:
        """Let a new sequence begin with blocks of another, which are copied when one writes them.

        Args:
            length: tokens it begins with, all of them computed and equal in both; None is all the
                parent has computed.
        """
        child.num_computed = parent.num_computed if length is None else length
        num_full = child.num_computed // self._block_size
        child.block_table = parent.block_table[: self.num_blocks_for(child.num_computed)]
        child.block_hashes = parent.block_hashes[:num_full]
        child.num_published = min(parent.num_published, num_full)
        self._pool.acquire(child.block_table)

    def release(self, sequence: Sequence) -> None:
        """Give all the sequence's blocks back."""
        self._pool.release(sequence.block_table)
        sequence.block_table, sequence.num_published = [], 0

    def usage(self, running: Iterable[Sequence]) -> PoolUsage:
        """Return how full the pool is, given the sequences that hold blocks."""
        num_usable, size = self._pool.num_usable, self._block_size
        num_used = num_usable - self._pool.num_free
        gaps: dict[int, list[int]] = {}
        for sequence in running:
            gap = -sequence.num_computed % size
            if gap:
                gaps.setdefault(sequence.block_table[-1], []).append(gap)
        # A block is as full as the longest of its holders makes it.
        free = (min(own) for block, own in gaps.items() if len(own) == self._pool.ref_count(block))
        return PoolUsage(num_usable, num_used, num_used * size - sum(free))

    def check(self, running: Iterable[Sequence]) -> None:
        """Raise AssertionError unless the pool's references are those of these sequences."""
        self._pool.check()
        holders: Counter[int] = Counter()
        for sequence in running:
            holders.update(sequence.block_table)
            wanted = self.num_blocks_for(sequence.num_computed)
            assert len(sequence.block_table) == wanted, "a block table of the wrong length"
            assert sequence.num_missing >= 0, "a token that was not drawn was computed"
        num_used = self._pool.num_usable - self._pool.num_free
        assert len(holders) == num_used, "a block is held by nobody"
        for block, num_holders in holders.items():
            assert self._pool.ref_count(block) == num_holders, f"wrong references of block {block}"

    def _num_new_blocks(self, sequence: Sequence, length: int) -> int:
        """Blocks to allocate for the next `length` tokens, including a copy of the last block."""
        total = self.num_blocks_for(sequence.num_computed + length)
        return total - len(sequence.block_table) + self._needs_copy(sequence)

    def _needs_copy(self, sequence: Sequence) -> bool:
        """Whether the next token goes into a block that somebody else reads as well.

        That is another sequence, or the prefix cache, where a fork holds the head of a full block.
        """
        if sequence.num_computed % self._block_size == 0:
            return False
        last = sequence.block_table[-1]
        return self._pool.ref_count(last) > 1 or self._pool.is_published(last)
