"""Rows laid into blocks of another size: nothing is lost, and what was shared is shared."""

from hypothesis import given
from hypothesis import strategies as st

from paged_jax.host.blocks import BlockPool
from paged_jax.host.placement import Placement

PARENT = list(range(10))
CHILD = [*range(6), 20, 21]  # blocks of 2: the first three are shared


def place(block_size: int, sequences: list[list[int]]) -> tuple[list[list[int] | None], dict]:
    pool = BlockPool(num_blocks=120)  # enough for the longest below
    placement = Placement(pool, block_size)
    tables = [placement.place(rows) for rows in sequences]
    pool.check()
    return tables, {slot: row for row, slot in placement.writes()}


def test_what_fills_whole_blocks_is_shared_at_any_size():
    assert place(2, [PARENT, CHILD])[0] == [[1, 2, 3, 4, 5], [1, 2, 3, 6]]
    assert place(3, [PARENT, CHILD])[0] == [[1, 2, 3, 4], [1, 2, 5]]
    assert place(4, [PARENT, CHILD])[0] == [[1, 2, 3], [1, 4]]
    assert place(16, [PARENT, CHILD])[0] == [[1], [2]]


def test_the_head_of_a_block_is_shared_whoever_comes_first():
    assert place(4, [PARENT, PARENT[:7]])[0] == [[1, 2, 3], [1, 2]]
    tables, rows = place(4, [PARENT[:7], PARENT])
    assert tables == [[1, 2], [1, 2, 3]]
    assert rows == {4 + offset: offset for offset in range(10)}


def test_what_finds_no_room_takes_nothing():
    pool = BlockPool(num_blocks=4)
    placement = Placement(pool, 4)
    assert placement.place(PARENT) == [1, 2, 3]
    assert placement.place([30]) is None
    assert placement.place(PARENT[:5]) == [1, 2]


@given(
    block_size=st.integers(1, 9),
    cuts=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 9)), min_size=1, max_size=5),
)
def test_every_position_finds_its_row(block_size, cuts):
    sequences = [
        [*range(head), *range(100 * index, 100 * index + tail)]
        for index, (head, tail) in enumerate(cuts, start=1)
    ]
    tables, rows = place(block_size, sequences)
    for table, sequence in zip(tables, sequences, strict=True):
        slots = [table[i // block_size] * block_size + i % block_size for i in range(len(sequence))]
        assert [rows[slot] for slot in slots] == sequence
