"""Cached blocks by what they begin with, for prompts that leave a cached text inside a block.

A block is found by the digest of all that comes before it and by its first token; of those, the
last few that were cached are compared token by token. So a look-up costs a bounded amount of work.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

NUM_COMPARED = 8
Place = tuple[bytes, int]  # digest of what comes before, first token


class PartialIndex:
    """Knows by digest what blocks hold, and by their beginnings which digests there are."""

    def __init__(self) -> None:
        self._tokens: dict[bytes, tuple[bytes, tuple[int, ...]]] = {}
        self._digests: dict[Place, dict[bytes, None]] = {}

    def add(self, digest: bytes, parent: bytes, tokens: tuple[int, ...]) -> None:
        """Note that a block with this digest holds `tokens`, behind what `parent` stands for."""
        self._tokens[digest] = (parent, tokens)
        self._digests.setdefault((parent, tokens[0]), {})[digest] = None

    def remove(self, digest: bytes) -> None:
        """Forget a digest, if it is known."""
        found = self._tokens.pop(digest, None)
        if found is None:
            return
        place = (found[0], found[1][0])
        del self._digests[place][digest]
        if not self._digests[place]:
            del self._digests[place]

    def clear(self) -> None:
        """Forget everything."""
        self._tokens.clear()
        self._digests.clear()

    def longest(self, parent: bytes, tokens: Sequence[int]) -> tuple[bytes, int] | None:
        """Return the digest whose block agrees longest with `tokens`, and in how many tokens."""
        candidates = self._digests.get((parent, tokens[0]), {})
        found = (
            (num_equal(self._tokens[digest][1], tokens), digest)
            for digest in islice(reversed(candidates), NUM_COMPARED)
        )
        length, digest = max(found, default=(0, b""))
        return (digest, length) if length else None

    def check(self, known: Iterable[bytes]) -> None:
        """Raise AssertionError unless it knows these digests alone, each in its one place."""
        assert self._tokens.keys() <= set(known), "a block that is not cached can be found in part"
        places = [(digest, place) for place, found in self._digests.items() for digest in found]
        wanted = [(digest, (before, held[0])) for digest, (before, held) in self._tokens.items()]
        assert sorted(places) == sorted(wanted), "the two directions of the partial index differ"
        assert all(self._digests.values()), "an empty place"


def num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    """Return in how many of their first tokens the two agree."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))
