"""The prefix cache as sequences see it: look up a prompt's blocks, offer the blocks that are full.

Blocks are offered when the chunk that fills them is scheduled, before it has run. That is sound
because within a layer all of a step's KV writes come before its attention reads, so even a sequence
of the same step may read them. A block whose last token is not known yet waits for that. What is
copied, though, is read before all of a step's writes: a block of the same step is never copied.
"""

from paged_jax.config import CacheConfig
from paged_jax.host.blocks import BlockPool, Content, hash_blocks, root_digest
from paged_jax.host.request import Sequence

LEAST_SHARE = 4  # a block is copied for a fourth of its tokens or more


class PrefixCache:
    """Finds and publishes full blocks by the hash chain of their tokens.

    Attributes:
        queries: prompt tokens looked up, once per request.
        hits: of these, tokens found.
    """

    def __init__(self, pool: BlockPool, cache: CacheConfig):
        self._pool = pool
        self._block_size = cache.block_size
        self._is_by_token = cache.partial_reuse and cache.prefix_caching
        self._least_copied = -(-cache.block_size // LEAST_SHARE)
        self._fresh: set[int] = set()  # blocks offered since the step was begun
        self.queries = 0
        self.hits = 0

    def lookup(self, sequence: Sequence) -> list[int]:
        """Return the cached blocks a sequence can begin with, short of at least its last token."""
        if not self._reads(sequence):
            return []
        num_full = (sequence.num_tokens - 1) // self._block_size
        return self._pool.match_prefix(self._hashes(sequence, num_full)[:num_full])

    def begin_step(self) -> None:
        """Note that all blocks offered so far belong to steps before this one."""
        self._fresh.clear()

    def find_head(self, sequence: Sequence) -> tuple[int, int] | None:
        """Return a cached block to copy the sequence's next tokens from, and how many it has.

        The sequence has been given the blocks that `lookup` found, and computes its last token.
        """
        start = sequence.num_computed
        stop = min(start + self._block_size, sequence.num_tokens - 1)
        if not self._is_by_token or stop - start < self._least_copied or not self._reads(sequence):
            return None
        parent = self._parent(sequence, start // self._block_size)
        found = self._pool.match_head(parent, sequence.tokens(start, stop), without=self._fresh)
        return found if found and found[1] >= self._least_copied else None

    def note_admission(self, sequence: Sequence) -> None:
        """Count the tokens a request begins with as served, at its first admission."""
        if sequence.num_cached is not None:
            return
        sequence.num_cached = sequence.num_computed
        if self._reads(sequence):
            self.queries += sequence.num_tokens
            self.hits += sequence.num_cached

    def publish(self, sequence: Sequence) -> None:
        """Offer the blocks that are full by now, and whose tokens are known, to lookups."""
        first = sequence.num_published
        last = min(sequence.num_computed, sequence.num_tokens) // self._block_size
        if first == last or not self._offers(sequence):
            return
        hashes = self._hashes(sequence, last)
        for index in range(first, last):
            block = sequence.block_table[index]
            if not self._pool.is_published(block):  # it is if another sequence filled it
                self._pool.publish(block, hashes[index], self._content(sequence, index))
                self._fresh.add(block)
        sequence.num_published = last

    def _reads(self, sequence: Sequence) -> bool:
        """Whether cached blocks may stand in for what the sequence would compute."""
        return self._pool.prefix_caching and not sequence.request.sampling.needs_whole_prompt

    def _offers(self, sequence: Sequence) -> bool:
        """Whether others may go on from what the sequence computes."""
        return self._pool.prefix_caching and not sequence.request.is_tapped

    def publish_rest(self, sequence: Sequence) -> None:
        """Offer what an ending sequence leaves in its last block to be found by its first tokens.

        All that it computes has been launched, so that nobody writes there again.
        """
        size, end = self._block_size, min(sequence.num_computed, sequence.num_tokens)
        if not self._is_by_token or end % size == 0 or not self._offers(sequence):
            return
        self.publish(sequence)
        index = end // size
        block = sequence.block_table[index]
        if self._pool.ref_count(block) > 1 or self._pool.is_published(block):
            return
        parent, tokens = self._parent(sequence, index), sequence.tokens(index * size, end)
        [digest] = hash_blocks(tokens, len(tokens), parent=parent)
        self._pool.publish(block, digest, (parent, tokens))

    def _content(self, sequence: Sequence, index: int) -> Content | None:
        """What a full block holds, if its first tokens are to be found."""
        if not self._is_by_token:
            return None
        start = index * self._block_size
        return self._parent(sequence, index), sequence.tokens(start, start + self._block_size)

    def _parent(self, sequence: Sequence, index: int) -> bytes:
        """The digest of all blocks before one."""
        hashes = sequence.block_hashes
        return hashes[index - 1] if index else root_digest(sequence.request.cache_salt)

    def _hashes(self, sequence: Sequence, num_blocks: int) -> list[bytes]:
        """The sequence's hash chain, extended to `num_blocks` blocks if it is shorter."""
        hashes, size = sequence.block_hashes, self._block_size
        if len(hashes) < num_blocks:
            tokens = sequence.tokens(len(hashes) * size, num_blocks * size)
            parent = hashes[-1] if hashes else None
            hashes += hash_blocks(tokens, size, parent=parent, salt=sequence.request.cache_salt)
        return hashes
