"""One-byte keys and values: rounding against numpy, what it costs attention, where things land."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from test_kv_pool import CACHE, MODEL

from paged_jax.device.attention import paged_attention
from paged_jax.device.kv_pool import FP8, KVPool, copy_blocks, init_pool
from paged_jax.device.kv_write import LARGEST, quantise, write_layer

# Half a step of the scale's grid for int8; 3 bits of fraction for float8, subnormals below 2**-6.
STEPS = {"int8": 0.5 / 127, FP8: 2**-4}


def make_heads(rng, kind: str = "float32") -> jax.Array:
    """Six tokens of two heads: of many sizes, one of them zeros."""
    sizes = np.array([1e-30, 1e-3, 1.0, 0.0, 300.0, 1e20], np.float32)[:, None, None]
    return jnp.asarray(rng.normal(size=(6, 2, 8)) * sizes, kind)


@pytest.mark.parametrize("kind", LARGEST)
def test_each_head_is_rounded_to_its_own_grid(rng, kind):
    x = make_heads(rng)
    values, scale = quantise(x, kind)
    want = np.abs(x).max(-1) / np.float32(LARGEST[kind])
    np.testing.assert_allclose(scale, want, rtol=1e-6)
    shares = np.asarray(x) / np.where(scale == 0, 1, scale)[..., None]
    rounded = np.rint(shares) if kind == "int8" else shares.astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(np.float32(values), np.float32(rounded))
    restored = np.float32(values) * np.asarray(scale)[..., None]
    assert (np.abs(restored - x) <= STEPS[kind] * np.abs(x).max(-1, keepdims=True) * 1.001).all()


@pytest.mark.parametrize("kind", LARGEST)
def test_ties_go_to_even_and_what_is_too_small_for_a_scale_is_zero(kind):
    most = LARGEST[kind]
    ties = jnp.array([[[most, 0.5, 1.5, 2.5, -0.5, -1.5]], [[1e-38] * 6]], jnp.float32)
    values, scale = quantise(ties, kind)
    assert scale[:, 0].tolist() == [1.0, 0.0]
    if kind == "int8":
        assert values[0, 0].tolist() == [most, 0, 2, 2, 0, -2]
    assert not np.float32(values[1]).any()


def test_what_is_not_finite_stays_so():
    x = jnp.array([[[1.0, np.nan]], [[1.0, np.inf]]], jnp.float32)
    values, scale = quantise(x, FP8)
    restored = values.astype(jnp.float32) * scale[..., None]
    assert not np.isfinite(restored).all(-1).any()


@pytest.mark.parametrize(("dtype", "bound"), [("int8", 0.02), ("fp8", 0.15), ("bfloat16", 0.02)])
def test_attention_over_a_narrow_pool_is_near_attention_over_a_float32_one(rng, dtype, bound):
    k, v = (jnp.asarray(rng.normal(size=(6, 2, 8)), jnp.float32) for _ in range(2))
    q = jnp.asarray(rng.normal(size=(6, 4, 8)), jnp.float32)
    outs = [attend(q, k, v, kind) for kind in ("float32", dtype)]
    error = np.abs(outs[1] - outs[0]).max()
    assert 0 < error < bound


def attend(q: jax.Array, k: jax.Array, v: jax.Array, dtype: str) -> np.ndarray:
    """Write six tokens of one sequence and attend from them."""
    (layer, *_) = init_pool(MODEL, replace(CACHE, dtype=dtype)).layers()
    slots = jnp.array([12, 13, 14, 15, 8, 9], jnp.int32)
    layer = jax.jit(write_layer)(layer, k, v, slots)
    ints = jnp.array([[3, 2]], jnp.int32), jnp.array([0, 6], jnp.int32), jnp.array([6], jnp.int32)
    scales = {"k_scales": layer.k_scales, "v_scales": layer.v_scales}
    return np.asarray(paged_attention(q, layer.k, layer.v, *ints, scale=0.35, **scales))


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_writing_and_copying_happen_in_place_without_widening_the_pool(dtype):
    cache = replace(CACHE, num_blocks=2000, dtype=dtype)
    pool, ids = init_pool(MODEL, cache), jnp.zeros(4, jnp.int32)
    new = jnp.ones((4, 2, 8), jnp.float32)
    write = lambda pool: KVPool.of([write_layer(kv, new, new, ids) for kv in pool.layers()])  # noqa: E731
    for change, arguments in ((write, (pool,)), (copy_blocks, (pool, ids, ids))):
        jitted = jax.jit(change, donate_argnums=0)
        memory = jitted.lower(*arguments).compile().memory_analysis()
        assert memory.alias_size_in_bytes == pool.num_bytes
        assert memory.temp_size_in_bytes < 50_000


def test_scales_are_copied_with_their_blocks():
    pool = init_pool(MODEL, replace(CACHE, dtype="int8"))
    new, slots = jnp.full((1, 2, 8), 127.0), jnp.array([4], jnp.int32)  # the first slot of block 1
    pool = KVPool.of([write_layer(kv, new, -2 * new, slots) for kv in pool.layers()])
    pool = copy_blocks(pool, jnp.array([1], jnp.int32), jnp.array([3], jnp.int32))
    for layer in pool.layers():
        assert layer.k[3, 0, 0].tolist() == [127] * 8 and layer.v[3, 0, 1].tolist() == [-127] * 8
        assert layer.k_scales[3, 0].tolist() == [1, 1] and layer.v_scales[3, 0].tolist() == [2, 2]
