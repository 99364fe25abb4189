"""How queries are cut, how contexts are split, and what the Triton kernels refuse."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels import triton
from pallas_kernels.decode import Partials, combine
from pallas_kernels.prefill import cut_queries
from pallas_kernels.tiles import MAX_SPLITS, MIN_SPLIT_TOKENS, choose_splits


@given(
    query_lens=st.lists(st.integers(0, 30), min_size=4, max_size=4),
    tile_q=st.sampled_from([1, 9, 21]),
)
@settings(max_examples=25, deadline=None)
def test_tiles_hold_every_token_once_and_never_two_sequences(query_lens, tile_q):
    starts = np.cumsum([0, *query_lens], dtype=np.int32)
    kv_lens = np.asarray(query_lens, np.int32) + 7
    num_tokens = 120
    tiles = cut_queries(jnp.asarray(kv_lens), jnp.asarray(starts), num_tokens, tile_q)
    seen = []
    for seq, start, stop, shift in np.stack(tiles, axis=1):
        assert stop - start <= tile_q
        seen += range(start, stop)
        if seq < len(query_lens) and start < stop:
            assert starts[seq] <= start and stop <= starts[seq + 1]
            assert start + shift == kv_lens[seq] - (starts[seq + 1] - start)
    assert seen == list(range(num_tokens))


def test_sequences_that_are_not_taken_have_no_tiles():
    lens, starts = jnp.array([5, 1, 3], jnp.int32), jnp.array([0, 5, 6, 9], jnp.int32)
    tiles = cut_queries(lens, starts, 10, 4, jnp.array([True, False, True]))
    spans = [(int(a), int(b)) for a, b in zip(tiles.start, tiles.stop, strict=True) if a < b]
    assert spans == [(0, 4), (4, 5), (6, 9), (9, 10)]


@pytest.mark.parametrize(("max_blocks", "has_decode"), [(256, False), (257, True)])
def test_steps_of_prompts_run_the_decode_kernel_too_where_contexts_may_be_long(
    max_blocks, has_decode
):
    q, pool = jnp.ones((16, 4, 64)), jnp.ones((8, 16, 2, 64))
    ints = [jnp.zeros(shape, jnp.int32) for shape in ((4, max_blocks), (5,), (4,))]
    attend = functools.partial(triton.paged_attention, scale=1.0)
    assert ("paged_decode" in str(jax.make_jaxpr(attend)(q, pool, pool, *ints))) == has_decode


def test_padding_has_no_context():
    lens, starts = jnp.array([3], jnp.int32), jnp.array([0, 2], jnp.int32)
    tiles = cut_queries(lens, starts, 8, 4)
    np.testing.assert_array_equal(jnp.maximum(tiles.stop + tiles.shift, 0), [3, 0, 0])


def test_few_programs_split_long_contexts_and_never_into_short_parts():
    h200 = {"blocks_per_sm": 5, "num_sms": 132}
    assert choose_splits(8, 1 << 20, **h200) == MAX_SPLITS
    assert choose_splits(8, 2048, **h200) == 2048 // MIN_SPLIT_TOKENS
    assert choose_splits(8, 100, **h200) == 1
    assert choose_splits(32 * 8, 32768, **h200) == 6
    assert choose_splits(256 * 8, 32768, **h200) == 1


def test_splits_without_context_add_nothing():
    lowest = float(np.finfo(np.float32).min)
    acc = jnp.stack([jnp.full((1, 1, 2), 6.0), jnp.zeros((1, 1, 2))])
    top, total = jnp.array([[[2.0]], [[lowest]]]), jnp.array([[[3.0]], [[0.0]]])
    np.testing.assert_array_equal(combine(Partials(acc, top, total)), [[[2.0, 2.0]]])
    empty = Partials(jnp.zeros_like(acc), jnp.full_like(top, lowest), jnp.zeros_like(total))
    np.testing.assert_array_equal(combine(empty), [[[0.0, 0.0]]])


def trace(tokens: int, heads: int, pool: tuple[int, ...], dtype: str, num_scales: int = 0) -> None:
    """Trace one call with bfloat16 queries and a pool of this shape and type."""
    q = jax.ShapeDtypeStruct((tokens, heads, pool[3]), jnp.bfloat16)
    ints = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((2, 4), (3,), (2,))]
    scales = [jax.ShapeDtypeStruct(pool[:3], jnp.float32)] * num_scales

    def attend(*arrays):
        named = dict(zip(("k_scales", "v_scales"), arrays[6:], strict=False))
        return triton.paged_attention(*arrays[:6], scale=1.0, **named)

    jax.eval_shape(attend, q, *[jax.ShapeDtypeStruct(pool, dtype)] * 2, *ints, *scales)


@pytest.mark.parametrize("tokens", [2, 64])
@pytest.mark.parametrize(
    ("limit", "call"),
    [
        ("head_dim 320 is above 256", (4, (9, 16, 2, 320), "bfloat16")),
        ("34 query heads per KV head are above 32", (68, (9, 16, 2, 64), "bfloat16")),
        ("block_size 512 is above 256", (4, (9, 512, 2, 64), "bfloat16")),
        ("queries are bfloat16 but the pool is float32", (4, (9, 16, 2, 64), "float32")),
        ("a pool of int8 with 0 arrays of scales", (4, (9, 16, 2, 64), "int8")),
        ("a pool of bfloat16 with 2 arrays of scales", (4, (9, 16, 2, 64), "bfloat16", 2)),
        ("2147483648 one-byte values lies between", (4, (1 << 20, 16, 2, 64), "int8", 2)),
    ],
)
def test_what_the_kernels_do_not_take_is_named(tokens, limit, call):
    with pytest.raises(NotImplementedError, match=limit):
        trace(tokens, *call)


@pytest.mark.parametrize("num_blocks", [(1 << 20) - 1, 1 << 21])
def test_one_byte_pools_below_2_and_from_4_gib_are_taken(num_blocks):
    trace(2, 4, (num_blocks, 16, 2, 64), "int8", 2)
