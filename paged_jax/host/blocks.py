"""The KV pool's book-keeping: which block is free, shared, or still holds a prefix worth keeping.

`BlockPool` knows block ids, reference counts and content hashes; it knows no tokens and no
sequences. Block 0 is the null block and is never handed out. A free block keeps its content, and
can be found by its hash, until it is handed out again. `hash_blocks` names what full blocks hold.
"""

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from itertools import takewhile

from paged_jax.host.partial import PartialIndex

NULL_BLOCK = 0
Content = tuple[bytes, tuple[int, ...]]


class OutOfBlocks(Exception):
    """Fewer blocks are free than were asked for."""


def hash_blocks(
    tokens: Sequence[int], block_size: int, *, parent: bytes | None = None, salt: str | None = None
) -> list[bytes]:
    """Return one SHA-256 digest per full block of `tokens`, each covering all tokens before it too.

    Args:
        tokens: ids in [0, 2**32); a partial block at the end is left out.
        parent: digest of the block before `tokens`; None if they begin the sequence.
        salt: separates equal tokens of different owners; it enters before the first block and
            reaches the others through the chain.
    """
    digest = root_digest(salt) if parent is None else parent
    packed = memoryview(array("I", tokens)).cast("B")
    size = block_size * array("I").itemsize
    digests: list[bytes] = []
    for start in range(0, len(packed) - size + 1, size):
        digest = sha256(digest + packed[start : start + size]).digest()
        digests.append(digest)
    return digests


def root_digest(salt: str | None) -> bytes:
    """Return the digest before the first block."""
    if salt is None:
        return bytes(sha256().digest_size)
    return sha256(b"salt" + salt.encode(errors="surrogatepass")).digest()


class BlockPool:
    """Hands out, shares and takes back blocks; keeps the prefix cache in the free ones.

    The free queue begins with the blocks to reuse first: those without a hash, then the least
    recently used. Several blocks may hold the same content; any of them serves.
    Source: Kwon et al. 2023, arXiv:2309.06180, section 4.
    """

    def __init__(self, num_blocks: int, *, prefix_caching: bool = True):
        assert num_blocks >= 2, "the pool needs one block beside the null block"
        self.num_blocks = num_blocks
        self.prefix_caching = prefix_caching
        self.num_resets = 0  # times that all cached content was forgotten
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._refs = [0] * num_blocks
        self._hash_of: dict[int, bytes] = {}
        self._blocks_of: dict[bytes, list[int]] = {}
        self.num_evicted = 0
        self._partial = PartialIndex()

    @property
    def num_usable(self) -> int:
        """Blocks there are, without the null block."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks nobody refers to, cached ones included."""
        return len(self._free)

    def ref_count(self, block: int) -> int:
        """Return how many sequences hold the block."""
        return self._refs[block]

    def is_published(self, block: int) -> bool:
        """Return whether the block can be found by its hash."""
        return block in self._hash_of

    def match_prefix(self, hashes: Iterable[bytes]) -> list[int]:
        """Return a block for each hash up to the first unknown one. Takes no reference."""
        blocks: list[int] = []
        for digest in hashes:
            known = self._blocks_of.get(digest)
            if known is None:
                break
            blocks.append(known[0])
        return blocks

    def match_head(
        self, parent: bytes, tokens: Sequence[int], *, without: Collection[int] = ()
    ) -> tuple[int, int] | None:
        """Return a block whose first tokens are the first of `tokens`, and how many agree.

        Args:
            parent: digest of all tokens before `tokens`.
            without: blocks that will not do.
        """
        found = self._partial.longest(parent, tokens)
        if found is None:
            return None
        blocks = (block for block in self._blocks_of[found[0]] if block not in without)
        block = next(blocks, None)
        return None if block is None else (block, found[1])

    def touch(self, block: int) -> None:
        """Make a cached block the last to be handed out, if it is free."""
        if block in self._free:
            self._free.move_to_end(block)

    def num_known(self, hashes: Iterable[bytes]) -> int:
        """Return how many of the hashes, up to the first unknown one, have a block.

        Any thread may ask.
        """
        return sum(1 for _ in takewhile(self._blocks_of.__contains__, hashes))

    def allocate(self, n: int) -> list[int]:
        """Take n blocks from the head of the free queue; what they had cached is forgotten.

        Raises:
            OutOfBlocks: fewer than n are free; then nothing has changed.
        """
        if n > self.num_free:
            raise OutOfBlocks(f"{n} blocks asked for, {self.num_free} of {self.num_usable} free")
        blocks = [self._free.popitem(last=False)[0] for _ in range(n)]
        for block in blocks:
            self._forget(block)
            self._refs[block] = 1
        return blocks

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block, free (that is: cached) or held."""
        for block in blocks:
            if self._refs[block] == 0:
                del self._free[block]
            self._refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a reference to each block of a sequence, given in the sequence's order.

        The tail goes first, so that of a cached prefix the head outlives the tail.
        """
        for block in reversed(blocks):
            assert self._refs[block] > 0, f"block {block} was released once too often"
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free[block] = None
                self._free.move_to_end(block, last=block in self._hash_of)

    def publish(self, block: int, digest: bytes, content: Content | None = None) -> None:
        """Let a held, full block be found by its hash; it must not be written again.

        Args:
            content: the digest before the block and its tokens: lets its first tokens be found.
        """
        if not self.prefix_caching:
            return
        assert self._refs[block] > 0, f"block {block} is published but not held"
        assert block not in self._hash_of, f"block {block} is published twice"
        self._hash_of[block] = digest
        self._blocks_of.setdefault(digest, []).append(block)
        if content is not None:
            self._partial.add(digest, *content)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content if no block is held; return whether that was so."""
        if self.num_free < self.num_usable:
            return False
        self._hash_of.clear()
        self._blocks_of.clear()
        self.num_resets += 1
        self._partial.clear()
        return True

    def _forget(self, block: int) -> None:
        """Drop the block from the prefix cache if it is there."""
        digest = self._hash_of.pop(block, None)
        if digest is None:
            return
        self.num_evicted += 1
        same = self._blocks_of[digest]
        same.remove(block)
        if not same:
            del self._blocks_of[digest]
            self._partial.remove(digest)

    def check(self) -> None:
        """Raise AssertionError unless every block is accounted for exactly once."""
        held = [block for block, refs in enumerate(self._refs) if refs > 0]
        assert min(self._refs) >= 0, "a reference count is negative"
        assert NULL_BLOCK not in self._free and self._refs[NULL_BLOCK] == 0, "null block in use"
        assert not self._free.keys() & set(held), "a held block is in the free queue"
        assert len(held) + self.num_free == self.num_usable, "blocks were lost or invented"
        known = {block: digest for digest, same in self._blocks_of.items() for block in same}
        assert known == self._hash_of, "the two directions of the hash map differ"
        assert sum(map(len, self._blocks_of.values())) == len(known), "a block has two hashes"
        assert all(self._blocks_of.values()), "a hash without a block"
        assert NULL_BLOCK not in known, "the null block is published"
        self._partial.check(self._blocks_of)
