"""The tiled attention equals its definition on every named shape; the write lands in its slots."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import dense, reference
from pallas_kernels.arg_specs import (
    ATTENTION_SPECS,
    AttentionInputs,
    AttentionSpec,
    make_inputs,
    make_sinks,
)
from pallas_kernels.oracle import attention as expected

FUNCTIONS = {
    "paged_attention": reference.paged_attention,
    "paged_attention_dense": dense.paged_attention_dense,
}
SPECS = {spec.name: spec for spec in ATTENTION_SPECS}
# float32 sums of a few hundred terms of order 1, in another order.
FLOAT32_TOLERANCE = 5e-6
# Outputs of order 1 rounded to 8 bits, from inputs rounded to 8 bits.
BFLOAT16_TOLERANCE = 2e-2


@functools.cache
def jitted(name: str, scale: float, window: int | None, softcap: float | None):
    rule = {"scale": scale, "window": window, "softcap": softcap}
    return jax.jit(functools.partial(FUNCTIONS[name], **rule))


def attend(name: str, inputs: AttentionInputs, spec: AttentionSpec, **options) -> np.ndarray:
    return np.asarray(jitted(name, spec.scale, spec.window, spec.softcap)(*inputs, **options))


@pytest.mark.parametrize("name", ["nothing", "mixed", "mixed window 130", "mixed softcap"])
def test_the_definition_equals_numpy(name):
    spec = SPECS[name]
    inputs = make_inputs(spec, seed=1)
    got = attend("paged_attention_dense", inputs, spec)
    np.testing.assert_allclose(got, expected(inputs, spec), atol=FLOAT32_TOLERANCE)


@pytest.mark.parametrize("name", SPECS)
def test_tiled_attention_equals_numpy(name):
    spec = SPECS[name]
    inputs = make_inputs(spec, seed=2)
    got = attend("paged_attention", inputs, spec)
    np.testing.assert_allclose(got, expected(inputs, spec), atol=FLOAT32_TOLERANCE)


SINK_SPECS = ("decode borders", "mixed", "mixed softcap", "mixed group 7", "mixed window 130")


@pytest.mark.parametrize("function", ["paged_attention", "paged_attention_dense"])
@pytest.mark.parametrize("name", SINK_SPECS)
def test_sinks_add_to_what_the_weights_are_divided_by(name, function):
    spec = SPECS[name]
    inputs, sinks = make_inputs(spec, seed=10), make_sinks(spec)
    got = attend(function, inputs, spec, sinks=jnp.asarray(sinks))
    np.testing.assert_allclose(got, expected(inputs, spec, sinks), atol=FLOAT32_TOLERANCE)


@pytest.mark.parametrize("name", ["decode", "mixed"])
def test_bfloat16_bits_in_the_pool_equal_bfloat16(name):
    spec = SPECS[name]
    inputs = make_inputs(spec, seed=3)
    half = AttentionInputs(*(jnp.asarray(x, jnp.bfloat16) for x in inputs[:3]), *inputs[3:])
    bits = half._replace(k_pool=half.k_pool.view(jnp.uint16), v_pool=half.v_pool.view(jnp.uint16))
    got = attend("paged_attention", bits, spec)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got, attend("paged_attention", half, spec))
    want = expected(inputs, spec)
    np.testing.assert_allclose(got.astype(np.float32), want, atol=BFLOAT16_TOLERANCE)


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float8_e4m3fn])
@pytest.mark.parametrize("function", ["paged_attention", "paged_attention_dense"])
def test_one_byte_pools_are_read_with_a_scale_for_each_token_and_head(function, dtype):
    spec = SPECS["mixed softcap"]
    narrow, scales, restored = make_narrow(make_inputs(spec, seed=9), dtype)
    got = attend(function, narrow, spec, **scales)
    np.testing.assert_allclose(got, expected(restored, spec), atol=FLOAT32_TOLERANCE)


def test_the_bits_of_float8_equal_float8():
    spec = SPECS["mixed"]
    narrow, scales, _ = make_narrow(make_inputs(spec, seed=9), jnp.float8_e4m3fn)
    bits = narrow._replace(
        k_pool=narrow.k_pool.view(jnp.uint8), v_pool=narrow.v_pool.view(jnp.uint8)
    )
    got, want = (attend("paged_attention", each, spec, **scales) for each in (bits, narrow))
    np.testing.assert_array_equal(got, want)


def make_narrow(inputs: AttentionInputs, dtype) -> tuple[AttentionInputs, dict, AttentionInputs]:
    """One-byte pools, their scales, which are NaN where no token lives, and what they stand for."""
    (k, k_scales), (v, v_scales) = (quantise(pool, dtype) for pool in inputs[1:3])
    restore = lambda values, scales: np.asarray(values, np.float32) * scales[..., None]  # noqa: E731
    restored = inputs._replace(k_pool=restore(k, k_scales), v_pool=restore(v, v_scales))
    scales = {"k_scales": jnp.asarray(k_scales), "v_scales": jnp.asarray(v_scales)}
    return inputs._replace(k_pool=k, v_pool=v), scales, restored


def quantise(pool: np.ndarray, dtype) -> tuple[jax.Array, np.ndarray]:
    most = 127 if dtype == jnp.int8 else 448
    scales = np.abs(pool).max(axis=-1) / most
    values = np.nan_to_num(pool / scales[..., None], nan=most)
    return jnp.asarray(np.round(values) if dtype == jnp.int8 else values, dtype), scales


@pytest.mark.parametrize("name", ["paged_attention", "paged_attention_dense"])
def test_padding_tokens_give_zeros(name):
    spec = SPECS["mixed"]
    got = attend(name, make_inputs(spec, seed=4), spec)
    assert not got[sum(spec.query_lens) :].any()
    assert np.isfinite(got).all()


def test_a_row_is_the_same_bits_beside_other_sequences():
    spec = SPECS["mixed"]
    inputs = make_inputs(spec, seed=5)
    together = attend("paged_attention", inputs, spec)
    for seq in range(len(spec.query_lens)):
        rows = slice(*inputs.query_starts[seq : seq + 2])
        alone = make_alone(inputs, seq)
        got = attend("paged_attention", alone, spec)[: rows.stop - rows.start]
        np.testing.assert_array_equal(got, together[rows])


def make_alone(inputs: AttentionInputs, seq: int) -> AttentionInputs:
    """The same shapes with one sequence left, in another row of the step."""
    rows = slice(*inputs.query_starts[seq : seq + 2])
    q, tables = np.ones_like(inputs.q), np.zeros_like(inputs.block_tables)
    q[: rows.stop - rows.start] = inputs.q[rows]
    tables[0], kv_lens = inputs.block_tables[seq], np.zeros_like(inputs.kv_lens)
    kv_lens[0] = inputs.kv_lens[seq]
    starts = np.full_like(inputs.query_starts, rows.stop - rows.start)
    starts[0] = 0
    return inputs._replace(q=q, block_tables=tables, query_starts=starts, kv_lens=kv_lens)


def test_block_size_does_not_change_a_bit():
    outs = []
    for name in ("mixed blocks of 1", "mixed blocks of 64"):
        spec = SPECS[name]
        inputs = make_inputs(spec, seed=6)
        outs.append(attend("paged_attention", with_counted_pools(inputs, spec), spec))
    np.testing.assert_array_equal(*outs)


def with_counted_pools(inputs: AttentionInputs, spec: AttentionSpec) -> AttentionInputs:
    """Keys and values that depend on sequence and position only, and equal queries."""
    k_pool, v_pool = np.full_like(inputs.k_pool, np.nan), np.full_like(inputs.v_pool, np.nan)
    for seq, kv_len in enumerate(spec.kv_lens):
        rng = np.random.default_rng(seq)
        for p in range(kv_len):
            at = inputs.block_tables[seq, p // spec.block_size], p % spec.block_size
            k_pool[at], v_pool[at] = rng.normal(size=(2, *k_pool.shape[2:]))
    q = np.random.default_rng(9).normal(size=inputs.q.shape).astype(np.float32)
    return inputs._replace(q=q, k_pool=k_pool, v_pool=v_pool)


def test_temporary_memory_does_not_grow_with_pool_or_context():
    def temp_bytes(blocks: int, max_blocks: int) -> int:
        shapes = [(64, 4, 8), (blocks, 16, 2, 8), (blocks, 16, 2, 8)]
        floats = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
        ints = [jax.ShapeDtypeStruct(s, jnp.int32) for s in ((8, max_blocks), (9,), (8,))]
        function = functools.partial(reference.paged_attention, scale=1.0)
        return (
            jax.jit(function).lower(*floats, *ints).compile().memory_analysis().temp_size_in_bytes
        )

    assert temp_bytes(5000, 512) == temp_bytes(50, 16)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint16"])
def test_write_puts_tokens_into_their_slots_in_place(dtype):
    pool = jnp.zeros((2000, 4, 2, 8), dtype)
    k = jnp.arange(5 * 16, dtype=jnp.float32).reshape(5, 2, 8)
    slots = jnp.array([0, 4, 7999, 0, 17], jnp.int32)
    write = jax.jit(reference.write_kv, donate_argnums=(0, 1))
    args = (pool, pool + jnp.ones((), dtype), k, -k, slots)
    memory = write.lower(*args).compile().memory_analysis()
    k_pool, v_pool = write(*args)
    assert memory.alias_size_in_bytes == 2 * pool.nbytes
    assert memory.temp_size_in_bytes < 10_000
    stored = [to_float(pool).reshape(8000, 2, 8)[slots[1:3]] for pool in (k_pool, v_pool)]
    np.testing.assert_array_equal(stored, [k[1:3], -k[1:3]])
    assert not to_float(k_pool)[2:4].any()


def to_float(pool: jax.Array) -> np.ndarray:
    floats = pool.view(jnp.bfloat16) if pool.dtype == jnp.uint16 else pool
    return np.asarray(floats, np.float32)
