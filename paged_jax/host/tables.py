"""How sequences hold blocks: block tables that grow, share blocks and copy them on write.

Invariant: a sequence holds exactly the blocks of its computed tokens, so only its last block can be
partly filled, and that is the only block that more than one sequence may want to write.
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

    @property
    def capacity(self) -> int:
        """Tokens the whole pool holds."""
        return self._pool.num_usable * self._block_size

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

    def can_grow(self, sequence: Sequence, length: int) -> bool:
        """Return whether the blocks for the next `length` tokens are free."""
        return self._num_new_blocks(sequence, length) <= self._pool.num_free

    def grow(self, sequence: Sequence, length: int) -> tuple[int, int] | None:
        """Add the blocks for the next `length` tokens and count these as computed.

        Returns the (source, target) of the block copy that has to come before their writes, if any.
        """
        num_new, is_shared = self._num_new_blocks(sequence, length), self._is_last_shared(sequence)
        copy = None
        sequence.num_computed += length
        if num_new == 0:
            return None
        blocks = self._pool.allocate(num_new)
        if is_shared:
            source, target = sequence.block_table[-1], blocks.pop(0)
            self._pool.release([source])
            sequence.block_table[-1] = target
            copy = (source, target)
        sequence.block_table += blocks
        return copy

    def share(self, sequence: Sequence, child: Sequence) -> None:
        """Let a new sequence hold the same blocks."""
        self._pool.acquire(sequence.block_table)
        child.block_table = list(sequence.block_table)
        child.block_hashes = list(sequence.block_hashes)
        child.num_published = sequence.num_published
        child.num_computed = sequence.num_computed

    def release(self, sequence: Sequence) -> None:
        """Give all the sequence's blocks back."""
        self._pool.release(sequence.block_table)
        sequence.block_table, sequence.num_published = [], 0

    def usage(self, running: Iterable[Sequence]) -> PoolUsage:
        """Return how full the pool is, given the sequences that hold blocks."""
        num_usable, size = self._pool.num_usable, self._block_size
        num_used = num_usable - self._pool.num_free
        gaps = {seq.block_table[-1]: -seq.num_computed % size for seq in running}
        return PoolUsage(num_usable, num_used, num_used * size - sum(gaps.values()))

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
        """Blocks to allocate for the next `length` tokens, including a copy of a shared block."""
        total = self.num_blocks_for(sequence.num_computed + length)
        return total - len(sequence.block_table) + self._is_last_shared(sequence)

    def _is_last_shared(self, sequence: Sequence) -> bool:
        """Whether the next token goes into a block that another sequence reads as well."""
        is_partial = sequence.num_computed % self._block_size > 0
        return is_partial and self._pool.ref_count(sequence.block_table[-1]) > 1
