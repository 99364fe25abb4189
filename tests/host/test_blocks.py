from hashlib import sha256
from struct import pack

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paged_jax.host.blocks import BlockPool, OutOfBlocks, hash_blocks


def make_cached(pool: BlockPool, *names: bytes) -> list[int]:
    """Blocks with these hashes, held once."""
    blocks = pool.allocate(len(names))
    for block, name in zip(blocks, names, strict=True):
        pool.publish(block, name)
    return blocks


def test_blocks_come_in_order_and_the_null_block_never():
    pool = BlockPool(5)

    assert pool.allocate(4) == [1, 2, 3, 4]
    assert pool.num_free == 0


def test_allocating_too_many_blocks_raises_and_changes_nothing():
    pool = BlockPool(4)
    pool.allocate(1)

    with pytest.raises(OutOfBlocks, match="3 blocks asked for, 2 of 3 free"):
        pool.allocate(3)

    assert pool.allocate(2) == [2, 3]


def test_blocks_without_a_hash_are_reused_first():
    pool = BlockPool(6)
    blocks = pool.allocate(3)

    pool.release(blocks)

    assert pool.allocate(5) == [1, 2, 3, 4, 5]


def test_cached_blocks_are_reused_last_and_tail_first():
    pool = BlockPool(6)
    pool.release(make_cached(pool, b"a", b"b", b"c"))

    assert pool.allocate(5) == [4, 5, 3, 2, 1]


def test_a_released_sequence_gives_its_partial_block_to_the_front():
    pool = BlockPool(6)
    blocks = [*make_cached(pool, b"a", b"b"), *pool.allocate(1)]

    pool.release(blocks)

    assert pool.allocate(5) == [3, 4, 5, 2, 1]


def test_least_recently_released_prefix_is_evicted_first():
    pool = BlockPool(5)
    old, new = make_cached(pool, b"old"), make_cached(pool, b"new")
    pool.release(old)
    pool.release(new)
    pool.acquire(old)
    pool.release(old)

    assert pool.allocate(4) == [3, 4, *new, *old]


def test_a_prefix_is_matched_up_to_the_first_miss():
    pool = BlockPool(6)
    one, two, _ = make_cached(pool, b"a", b"b", b"d")

    assert pool.match_prefix([b"a", b"b", b"c", b"d"]) == [one, two]


def test_matching_takes_no_reference():
    pool = BlockPool(3)
    [block] = make_cached(pool, b"a")
    pool.release([block])

    assert pool.match_prefix([b"a"]) == [block]
    assert pool.ref_count(block) == 0
    assert pool.num_free == 2


def test_an_acquired_cached_block_leaves_the_free_queue():
    pool = BlockPool(3)
    [block] = make_cached(pool, b"a")
    pool.release([block])

    pool.acquire([block])

    assert (pool.ref_count(block), pool.num_free) == (1, 1)
    assert pool.allocate(1) != [block]


def test_a_block_is_found_until_it_is_handed_out_again():
    pool = BlockPool(3)
    [block] = make_cached(pool, b"a")
    pool.release([block])
    assert pool.match_prefix([b"a"]) == [block]

    pool.allocate(2)

    assert pool.match_prefix([b"a"]) == []


def test_a_second_block_of_the_same_content_serves_when_the_first_is_evicted():
    pool = BlockPool(3)
    [first], [second] = make_cached(pool, b"a"), make_cached(pool, b"a")
    assert pool.match_prefix([b"a"]) == [first]

    pool.release([first])
    pool.allocate(1)

    assert pool.match_prefix([b"a"]) == [second]
    pool.check()


def test_a_shared_block_is_free_when_its_last_holder_releases_it():
    pool = BlockPool(3)
    [block] = pool.allocate(1)
    pool.acquire([block])

    pool.release([block])
    assert pool.num_free == 1
    pool.release([block])
    assert pool.num_free == 2


def test_the_prefix_cache_is_reset_only_when_nothing_is_held():
    pool = BlockPool(3)
    blocks = make_cached(pool, b"a")
    assert not pool.reset_prefix_cache()
    pool.release(blocks)

    assert pool.reset_prefix_cache()

    assert pool.match_prefix([b"a"]) == []
    pool.check()


def test_nothing_is_published_without_prefix_caching():
    pool = BlockPool(3, prefix_caching=False)

    make_cached(pool, b"a")

    assert pool.match_prefix([b"a"]) == []


def test_releasing_a_block_once_too_often_is_caught():
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.release(blocks)

    with pytest.raises(AssertionError, match="once too often"):
        pool.release(blocks)


@pytest.mark.parametrize(
    "damage",
    [
        lambda pool: pool._refs.__setitem__(1, 0),
        lambda pool: pool._refs.__setitem__(3, 1),
        lambda pool: pool._free.__setitem__(0, None),
        lambda pool: pool._free.popitem(),
        lambda pool: pool._hash_of.clear(),
        lambda pool: pool._blocks_of[b"a"].append(2),
        lambda pool: pool._blocks_of.__setitem__(b"b", []),
    ],
)
def test_the_audit_finds_damage(damage):
    pool = BlockPool(4)
    make_cached(pool, b"a")
    pool.check()

    damage(pool)

    with pytest.raises(AssertionError):
        pool.check()


def test_only_full_blocks_are_hashed():
    assert len(hash_blocks(range(11), 4)) == 2
    assert hash_blocks(range(3), 4) == []
    assert hash_blocks([], 4) == []


def test_a_hash_covers_all_tokens_before_it():
    one, two = hash_blocks([1, 2, 3, 4], 2), hash_blocks([9, 2, 3, 4], 2)

    assert not set(one) & set(two)


def test_a_salt_changes_every_hash_of_a_chain():
    tokens = [1, 2, 3, 4]
    chains = [hash_blocks(tokens, 2, salt=salt) for salt in (None, "", "a", "\ud83d")]

    assert len({digest for chain in chains for digest in chain}) == 8


def test_a_hash_is_sha256_of_parent_and_packed_tokens():
    [digest] = hash_blocks([1, 2], 2)

    assert digest == sha256(bytes(32) + pack("=2I", 1, 2)).digest()


@given(
    tokens=st.lists(st.integers(0, 2**32 - 1), max_size=40),
    cut=st.integers(0, 10),
    block_size=st.integers(1, 5),
    salt=st.none() | st.text(max_size=3),
)
def test_a_chain_extended_from_its_parent_equals_the_whole_chain(tokens, cut, block_size, salt):
    whole = hash_blocks(tokens, block_size, salt=salt)
    head = hash_blocks(tokens[: cut * block_size], block_size, salt=salt)
    parent = head[-1] if head else None

    tail = hash_blocks(tokens[len(head) * block_size :], block_size, parent=parent, salt=salt)

    assert head + tail == whole


class BlockPoolMachine(RuleBasedStateMachine):
    """Allocate, share, publish and release at random; the model is a list of holders' tables."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(9)
        self.tables: list[list[int]] = []
        self.published: set[int] = set()

    @rule(n=st.integers(1, 4))
    def allocate(self, n):
        if n > self.pool.num_free:
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(n)
            return
        blocks = self.pool.allocate(n)
        assert len(set(blocks)) == n and not set(blocks) & self.held()
        self.published -= set(blocks)
        self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data):
        table = data.draw(st.sampled_from(self.tables))
        self.pool.acquire(table)
        self.tables.append(list(table))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), name=st.sampled_from([b"a", b"b", b"c"]))
    def publish(self, data, name):
        block = data.draw(st.sampled_from(data.draw(st.sampled_from(self.tables))))
        if block not in self.published:
            self.pool.publish(block, name)
            self.published.add(block)

    @rule(names=st.lists(st.sampled_from([b"a", b"b", b"c"]), unique=True, max_size=3))
    def reuse(self, names):
        blocks = self.pool.match_prefix(names)
        assert set(blocks) <= self.published
        if blocks:
            self.pool.acquire(blocks)
            self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data):
        self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    def held(self) -> set[int]:
        return {block for table in self.tables for block in table}

    @invariant()
    def every_block_is_accounted_for(self):
        self.pool.check()
        assert self.pool.num_free == 8 - len(self.held())
        for block in range(9):
            holders = sum(block in table for table in self.tables)
            assert self.pool.ref_count(block) == holders


TestBlockPoolMachine = BlockPoolMachine.TestCase
