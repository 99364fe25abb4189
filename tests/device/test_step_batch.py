"""Packing a step: one worked example with every number, and what is refused."""

import numpy as np
import pytest

from paged_jax.device.step_batch import BatchShape, empty_batch, pack
from paged_jax.host.request import Chunk, Request, Sequence
from paged_jax.host.sampling_params import SamplingParams

SHAPE = BatchShape(tokens=8, seqs=3, max_blocks=3, rows=4)


def make_sequence(prompt: list[int], output: list[int], blocks: list[int], n: int = 1) -> Sequence:
    request = Request(
        id="r", prompt=tuple(prompt), sampling=SamplingParams(n=n), seed=0, max_tokens=9
    )
    return Sequence(request, output=output, block_table=blocks)


def make_chunks() -> list[Chunk]:
    """A prompt's second chunk that forks into 2, and a decode of one token; blocks of 4."""
    prefill = make_sequence([10, 11, 12, 13, 14, 15], [], blocks=[7, 2], n=2)
    decode = make_sequence([20, 21, 22, 23, 24], [25, 26, 27, 28], blocks=[3, 9, 5])
    return [Chunk(prefill, 2, 4, num_samples=2), Chunk(decode, 8, 1, num_samples=1)]


def test_a_step_is_packed_chunk_after_chunk():
    batch = pack(make_chunks(), SHAPE, block_size=4)
    assert batch.tokens.tolist() == [12, 13, 14, 15, 28, 0, 0, 0]
    assert batch.positions.tolist() == [2, 3, 4, 5, 8, 0, 0, 0]
    assert batch.slots.tolist() == [30, 31, 8, 9, 20, 0, 0, 0]
    assert batch.seq_of_token.tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    assert batch.block_tables.tolist() == [[7, 2, 0], [3, 9, 5], [0, 0, 0]]
    assert batch.query_starts.tolist() == [0, 4, 5, 5]
    assert batch.kv_lens.tolist() == [6, 9, 0]
    assert batch.prompt_lens.tolist() == [6, 5, 0]
    assert batch.sample_at.tolist() == [3, 3, 4, 0]


def test_a_chunk_that_draws_nothing_takes_no_row():
    first, second = make_chunks()
    batch = pack([Chunk(first.sequence, 0, 3, num_samples=0), second], SHAPE, block_size=4)
    assert batch.tokens[:4].tolist() == [10, 11, 12, 28]
    assert batch.sample_at.tolist() == [3, 0, 0, 0]


def test_every_step_is_packed_into_fresh_memory():
    one, other = (pack(make_chunks(), SHAPE, block_size=4) for _ in range(2))
    assert not np.shares_memory(one.tokens, other.tokens)
    assert not np.shares_memory(empty_batch(SHAPE).block_tables, other.block_tables)


def test_a_step_without_chunks_is_all_padding():
    batch = pack([], SHAPE, block_size=4)
    assert not any(np.any(leaf) for leaf in vars(batch).values())


@pytest.mark.parametrize(
    ("blocks", "message"), [([7], "a token has no block"), ([7, 0], "to the null block")]
)
def test_a_token_without_a_block_of_its_own_is_refused(blocks, message):
    sequence = make_sequence([1, 2, 3, 4, 5, 6], [], blocks)
    with pytest.raises(AssertionError, match=message):
        pack([Chunk(sequence, 0, 6, num_samples=1)], SHAPE, block_size=4)


@pytest.mark.parametrize("field", ["tokens", "seqs", "rows"])
def test_a_step_larger_than_its_shape_is_refused(field):
    small = BatchShape(**{**vars(SHAPE), field: 1})
    with pytest.raises(AssertionError, match="BatchShape"):
        pack(make_chunks(), small, block_size=4)
