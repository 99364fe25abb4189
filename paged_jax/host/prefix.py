"""The prefix cache as sequences see it: look up a prompt's blocks, offer the blocks that are full.

Blocks are offered when the chunk that fills them is scheduled, before it has run. That is sound
because within a layer all of a step's KV writes come before its attention reads, so even a sequence
of the same step may read them. A block whose last token is not known yet waits for that.
"""

from paged_jax.host.blocks import BlockPool, hash_blocks
from paged_jax.host.request import Sequence


class PrefixCache:
    """Finds and publishes full blocks by the hash chain of their tokens.

    Attributes:
        queries: prompt tokens looked up, once per request.
        hits: of these, tokens found.
    """

    def __init__(self, pool: BlockPool, block_size: int):
        self._pool = pool
        self._block_size = block_size
        self.queries = 0
        self.hits = 0

    def lookup(self, sequence: Sequence) -> list[int]:
        """Return the cached blocks a sequence can begin with, short of at least its last token."""
        if not self._reads(sequence):
            return []
        num_full = (sequence.num_tokens - 1) // self._block_size
        return self._pool.match_prefix(self._hashes(sequence, num_full)[:num_full])

    def note_admission(self, sequence: Sequence, num_hits: int) -> None:
        """Count the tokens of `num_hits` blocks as served at a request's first admission."""
        if sequence.num_cached is not None:
            return
        sequence.num_cached = num_hits * self._block_size
        if self._reads(sequence):
            self.queries += sequence.num_tokens
            self.hits += sequence.num_cached

    def publish(self, sequence: Sequence) -> None:
        """Offer the blocks that are full by now, and whose tokens are known, to lookups."""
        first = sequence.num_published
        last = min(sequence.num_computed, sequence.num_tokens) // self._block_size
        if first == last or not self._pool.prefix_caching:
            return
        hashes = self._hashes(sequence, last)
        for index in range(first, last):
            block = sequence.block_table[index]
            if not self._pool.is_published(block):  # it is if another sequence filled it
                self._pool.publish(block, hashes[index])
        sequence.num_published = last

    def _reads(self, sequence: Sequence) -> bool:
        """Whether cached blocks may stand in: prompt_logprobs need every position computed."""
        is_scored = sequence.request.sampling.prompt_logprobs is not None
        return self._pool.prefix_caching and not is_scored

    def _hashes(self, sequence: Sequence, num_blocks: int) -> list[bytes]:
        """The sequence's hash chain, extended to `num_blocks` blocks if it is shorter."""
        hashes, size = sequence.block_hashes, self._block_size
        if len(hashes) < num_blocks:
            tokens = sequence.tokens(len(hashes) * size, num_blocks * size)
            parent = hashes[-1] if hashes else None
            hashes += hash_blocks(tokens, size, parent=parent, salt=sequence.request.cache_salt)
        return hashes
