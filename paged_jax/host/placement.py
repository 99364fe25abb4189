"""Tokens that lie somewhere else, laid into blocks of a pool: what was shared is shared again.

A row is the key and value of one token where it comes from, by number. Where two sequences had the
same rows at the same positions, they get the same block, whatever the size of blocks was.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq

from paged_jax.host.blocks import BlockPool


class Placement:
    """Collects block tables and what their blocks have to hold."""

    def __init__(self, pool: BlockPool, block_size: int):
        self._pool = pool
        self._block_size = block_size
        self._rows: dict[int, Seq[int]] = {}  # of each block
        self._by_first: dict[int, list[int]] = {}  # blocks by their first row

    def place(self, rows: Seq[int]) -> list[int] | None:
        """Return a block table for the rows of a sequence; None if not enough blocks are free.

        The caller holds the blocks from then on.
        """
        size = self._block_size
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        found = [self._find(part) for part in parts]
        num_missing = found.count(None)
        if num_missing > self._pool.num_free:
            return None
        self._pool.acquire(block for block in found if block is not None)
        fresh = iter(self._pool.allocate(num_missing))
        table = [next(fresh) if block is None else block for block in found]
        for block, part in zip(table, parts, strict=True):
            self._note(block, part)
        return table

    def writes(self) -> Iterator[tuple[int, int]]:
        """Yield each (row, slot) that has to be filled."""
        for block, rows in self._rows.items():
            for offset, row in enumerate(rows):
                yield row, block * self._block_size + offset

    def _find(self, part: Seq[int]) -> int | None:
        """Return a block that holds these rows, or the first of them and nothing else."""
        for block in self._by_first.get(part[0], ()):
            known = self._rows[block]
            num_both = min(len(known), len(part))
            if known[:num_both] == part[:num_both]:
                return block
        return None

    def _note(self, block: int, part: Seq[int]) -> None:
        known = self._rows.get(block)
        if known is None:
            self._by_first.setdefault(part[0], []).append(block)
        if known is None or len(known) < len(part):
            self._rows[block] = part
