"""The C++ attention against float64 on every named shape, and the write in place.

Every slot that no live token owns is NaN and every table entry past a context is far out of range,
so that one load too many shows.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paged_jax.device.cpu import kernels
from paged_jax.device.cpu.attention import paged_attention, rotate_and_write, write_kv
from paged_jax.models.rope import rotate
from pallas_kernels import reference
from pallas_kernels.arg_specs import (
    ATTENTION_SPECS,
    DECODE_BORDERS,
    MIXED,
    AttentionInputs,
    AttentionSpec,
    make_inputs,
    make_sinks,
)
from pallas_kernels.oracle import attention as expected

pytestmark = pytest.mark.cpu_kernels

TOLERANCE = 5e-6  # float32 sums of a few hundred terms of order 1
LONG = AttentionSpec("long", (1, 40, 1), (1500, 900, 513), 48, 4, max_blocks=100)
ODD = replace(MIXED, name="odd heads", q_heads=13, kv_heads=1, head_dim=37, block_size=7)
SPECS = (
    *ATTENTION_SPECS,
    LONG,
    replace(LONG, name="long window", window=300),
    replace(ODD, max_blocks=50),
)


@functools.cache
def jitted(scale: float, window: int | None, softcap: float | None):
    rule = {"scale": scale, "window": window, "softcap": softcap}
    return jax.jit(functools.partial(paged_attention, **rule))


def attend(inputs: AttentionInputs, spec: AttentionSpec, **options: jax.Array) -> np.ndarray:
    return np.asarray(jitted(spec.scale, spec.window, spec.softcap)(*inputs, **options))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_attention_equals_float64(spec: AttentionSpec) -> None:
    inputs = make_inputs(spec, seed=2)
    np.testing.assert_allclose(attend(inputs, spec), expected(inputs, spec), atol=TOLERANCE)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_the_bits_of_bfloat16_are_read_exactly(spec: AttentionSpec) -> None:
    inputs = make_inputs(spec, seed=3)
    pools = [jnp.asarray(pool, jnp.bfloat16) for pool in inputs[1:3]]
    bits = AttentionInputs(inputs.q, *(pool.view(jnp.uint16) for pool in pools), *inputs[3:])
    wide = AttentionInputs(inputs.q, *(np.float32(pool) for pool in pools), *inputs[3:])
    got = attend(bits, spec)
    np.testing.assert_allclose(got, expected(wide, spec), atol=TOLERANCE)
    np.testing.assert_array_equal(got, attend(bits._replace(k_pool=pools[0]), spec))


@pytest.mark.parametrize("spec", [DECODE_BORDERS, MIXED, LONG], ids=lambda spec: spec.name)
def test_sinks_add_to_what_the_weights_are_divided_by(spec: AttentionSpec) -> None:
    inputs, sinks = make_inputs(spec, seed=10), make_sinks(spec)
    got = attend(inputs, spec, sinks=jnp.asarray(sinks))
    np.testing.assert_allclose(got, expected(inputs, spec, sinks), atol=TOLERANCE)


def test_padding_tokens_give_zeros() -> None:
    got = attend(make_inputs(MIXED, seed=4), MIXED)
    assert not got[sum(MIXED.query_lens) :].any()


def test_bfloat16_queries_give_bfloat16() -> None:
    inputs = make_inputs(MIXED, seed=5)
    half = inputs._replace(q=jnp.asarray(inputs.q, jnp.bfloat16))
    got = attend(half, MIXED)
    want = attend(inputs._replace(q=np.float32(half.q)), MIXED)
    np.testing.assert_array_equal(got, want.astype(jnp.bfloat16))


@pytest.mark.parametrize("window", [17, 64, 300])
@pytest.mark.parametrize("query_len", [1, 20])
def test_what_lies_before_the_window_is_not_read(window: int, query_len: int) -> None:
    spec = replace(LONG, query_lens=(query_len,) * 3, num_tokens=64, window=window)
    inputs = make_inputs(spec, seed=6)
    want = expected(inputs, spec)
    for row, length in zip(inputs.block_tables, spec.kv_lens, strict=False):
        row[: (length - query_len + 1 - window) // spec.block_size] = 1 << 30
    np.testing.assert_allclose(attend(inputs, spec), want, atol=TOLERANCE)


@pytest.mark.parametrize("spec", [MIXED, LONG], ids=lambda spec: spec.name)
def test_a_row_is_the_same_bits_beside_other_sequences_and_in_other_shapes(spec) -> None:
    inputs = make_inputs(spec, seed=7)
    together = attend(inputs, spec)
    for seq in range(len(spec.query_lens)):
        rows = slice(*inputs.query_starts[seq : seq + 2])
        alone = inputs._replace(
            q=inputs.q[rows],
            block_tables=inputs.block_tables[seq : seq + 1],
            query_starts=np.array([0, rows.stop - rows.start], np.int32),
            kv_lens=inputs.kv_lens[seq : seq + 1],
        )
        np.testing.assert_array_equal(attend(alone, spec), together[rows])


def sharing(name: str, num_seqs: int, prefixes: tuple[int, ...], **shape) -> tuple:
    """A spec of single queries, and its inputs: each share of the sequences has a common prefix.

    Every fifth has a first block of its own.
    """
    kv_lens = tuple(530 + 37 * (7 * seq % num_seqs) // 4 for seq in range(num_seqs))
    spec = AttentionSpec(
        name, (1,) * num_seqs, kv_lens, num_seqs + 2, num_seqs + 1, max_blocks=200, **shape
    )
    inputs = make_inputs(spec, seed=11)
    first_blocks = inputs.block_tables[4:num_seqs:5, 0].copy()
    for share, length in enumerate(prefixes):
        blocks = inputs.block_tables[share : num_seqs : len(prefixes), : length // spec.block_size]
        blocks[:] = blocks[0]
    inputs.block_tables[4:num_seqs:5, 0] = first_blocks
    return spec, inputs


SHARING = (
    sharing("two prefixes", 40, (512, 300), kv_heads=3, q_heads=9),
    sharing("blocks of 5", 20, (513,), q_heads=4, kv_heads=1, block_size=5),
    sharing("group 1", 70, (512,), q_heads=2, kv_heads=2, softcap=2.0),
    sharing("group 2", 12, (512,), q_heads=4, kv_heads=2, head_dim=128),
    sharing("group 7 in a window", 15, (512,), q_heads=7, kv_heads=1, head_dim=80, window=400),
    sharing("odd heads", 10, (512,), q_heads=4, kv_heads=1, head_dim=37),
)


def with_own_blocks(inputs: AttentionInputs) -> AttentionInputs:
    """The same keys and values, in blocks that no two sequences share."""
    used = inputs.block_tables < len(inputs.k_pool)
    copies = inputs.block_tables[used]
    tables = np.where(used, np.cumsum(used).reshape(used.shape) - 1, 1 << 30).astype(np.int32)
    pools = [pool[copies] for pool in inputs[1:3]]
    return inputs._replace(k_pool=pools[0], v_pool=pools[1], block_tables=tables)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("spec", "inputs"), SHARING, ids=lambda value: getattr(value, "name", ""))
def test_a_shared_prefix_changes_no_bit(spec, inputs, dtype) -> None:
    pools = [np.asarray(pool.astype(dtype)) for pool in inputs[1:3]]
    inputs = inputs._replace(k_pool=pools[0], v_pool=pools[1])
    wide = inputs._replace(k_pool=np.float32(pools[0]), v_pool=np.float32(pools[1]))
    got = attend(inputs, spec)
    np.testing.assert_allclose(got, expected(wide, spec), atol=TOLERANCE)
    np.testing.assert_array_equal(got, attend(with_own_blocks(inputs), spec))


def test_chunks_of_a_prompt_give_the_bits_of_the_whole() -> None:
    spec = replace(LONG, query_lens=(200,), kv_lens=(900,), num_tokens=200, num_seqs=1)
    inputs = make_inputs(spec, seed=8)
    whole = attend(inputs, spec)
    for start, stop in ((0, 7), (7, 99), (99, 200)):
        chunk = inputs._replace(
            q=inputs.q[start:stop],
            query_starts=np.array([0, stop - start], np.int32),
            kv_lens=np.array([700 + stop], np.int32),
        )
        np.testing.assert_array_equal(attend(chunk, spec), whole[start:stop])


def test_threads_do_not_change_a_bit() -> None:
    spec = replace(LONG, query_lens=(1, 1, 300), num_tokens=302)
    inputs = make_inputs(spec, seed=9)
    first = attend(inputs, spec)
    for _ in range(20):
        np.testing.assert_array_equal(attend(inputs, spec), first)


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_pools_it_does_not_read_are_named(dtype: str) -> None:
    q, k_pool, _, *ints = map(jnp.asarray, make_inputs(MIXED, seed=1))
    pool = jnp.zeros(k_pool.shape, dtype)
    with pytest.raises(NotImplementedError, match=f"read no pool of {dtype}"):
        paged_attention(q, pool, pool, *ints, scale=1.0)


def test_without_kernels_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.SWITCH, "off")
    arrays = map(jnp.asarray, make_inputs(MIXED, seed=1))
    with pytest.raises(NotImplementedError, match="the CPU kernels cannot be used here"):
        paged_attention(*arrays, scale=1.0)


def make_write(tokens: int, kind: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Keys, values and distinct slots of a pool of 8,000; the last two tokens are padding."""
    rng = np.random.default_rng(0)
    k, v = (jnp.asarray(rng.normal(size=(tokens, 2, 8)), kind) for _ in range(2))
    slots = rng.permutation(np.arange(1, 8000, dtype=np.int32))[:tokens]
    slots[-2:] = 0
    return k, v, jnp.asarray(slots)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_heads_are_rotated_on_their_way_to_the_pool(rng, dtype: str) -> None:
    heads = [jnp.asarray(rng.normal(size=(70, n, 6)), jnp.float32) for n in (4, 2, 2)]
    angles = rng.uniform(0, 6, size=(70, 3))
    cos, sin = jnp.float32(np.cos(angles)), jnp.float32(np.sin(angles))
    slots = jnp.asarray(np.r_[rng.permutation(95)[:60] + 1, np.zeros(10)], jnp.int32)
    pools = (jnp.zeros((12, 8, 2, 6), dtype),) * 2
    q, *got = jax.jit(rotate_and_write)(tuple(heads), (cos, sin), pools, slots)
    turned = [rotate(part, (cos, sin)) for part in heads[:2]]
    np.testing.assert_allclose(q, turned[0], atol=1e-6)
    want = reference.write_kv(*pools, turned[1], heads[2], slots)
    step = 1e-6 if dtype == "float32" else 2**-7  # a last bit may differ before rounding
    for pool, expected_pool in zip(got, want, strict=True):
        pair = (np.float32(part).reshape(96, -1)[1:] for part in (pool, expected_pool))
        np.testing.assert_allclose(*pair, rtol=step, atol=1e-6)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "uint16", "bfloat16"])
@pytest.mark.parametrize("tokens", [5, 300])
def test_a_write_is_the_reference_but_for_the_slot_of_padding(dtype, kind, tokens) -> None:
    pool = jnp.zeros((2000, 4, 2, 8), dtype)
    k, v, slots = make_write(tokens, kind)
    got = jax.jit(write_kv)(pool, pool, k, v, slots)
    want = reference.write_kv(pool, pool, k, v, slots)
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(ours[0, 1:], theirs[0, 1:])
        np.testing.assert_array_equal(ours[1:], theirs[1:])
        assert not ours[0, 0].any()


@pytest.mark.parametrize("blocks", [20, 2000])
def test_a_write_is_in_place(blocks: int) -> None:
    pool = jnp.zeros((blocks, 4, 2, 8), jnp.uint16)
    k, v, slots = make_write(5, "float32")
    write = jax.jit(write_kv, donate_argnums=(0, 1))
    memory = write.lower(pool, pool, k, v, slots).compile().memory_analysis()
    assert memory.alias_size_in_bytes == 2 * pool.nbytes
    assert memory.temp_size_in_bytes < 1000
