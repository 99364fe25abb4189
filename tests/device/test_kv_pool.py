"""The pool's layout, its storage types, and copies in place."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paged_jax.config import CacheConfig, ModelConfig
from paged_jax.device.kv_pool import (
    KVPool,
    block_bytes,
    copy_blocks,
    init_pool,
    pool_dtype,
    pool_shape,
    pool_struct,
    storage_dtype,
)

MODEL = ModelConfig(
    family="llama",
    vocab_size=32,
    num_layers=3,
    embed_dim=16,
    mlp_dim=32,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_position=64,
)
CACHE = CacheConfig(num_blocks=5, block_size=4)


def make_counted_pool() -> KVPool:
    """Block b of layer i holds the number 10 i + b; values are negative."""
    blocks = jnp.arange(5, dtype=jnp.float32)[:, None, None, None]
    layers = [jnp.broadcast_to(blocks + 10.0 * i, pool_shape(MODEL, CACHE)) for i in range(3)]
    return KVPool(k=tuple(layers), v=tuple(-layer for layer in layers))


def first_numbers(layer: jax.Array) -> list[int]:
    return np.asarray(layer[:, 0, 0, 0]).astype(int).tolist()


def test_the_pool_has_an_array_a_layer_for_keys_and_for_values():
    pool = init_pool(MODEL, CACHE)
    assert [leaf.shape for leaf in (*pool.k, *pool.v)] == [(5, 4, 2, 8)] * 6
    assert not any(leaf.any() for leaf in jax.tree.leaves(pool))
    assert pool.num_bytes == 5 * block_bytes(MODEL, CACHE) == 5 * 2 * 3 * 4 * 2 * 8 * 4


@pytest.mark.parametrize(("dtype", "stored"), [("int8", "int8"), ("fp8", "uint8")])
def test_one_byte_pools_have_a_scale_for_each_token_and_head(dtype, stored):
    cache = replace(CACHE, dtype=dtype)
    pool = init_pool(MODEL, cache)
    assert {leaf.dtype.name for leaf in (*pool.k, *pool.v)} == {stored}
    assert [leaf.shape for leaf in (*pool.k_scales, *pool.v_scales)] == [(5, 4, 2)] * 6
    assert pool.num_bytes == 5 * block_bytes(MODEL, cache) == 5 * 2 * 3 * 4 * 2 * (8 + 4)
    assert pool_struct(MODEL, cache) == jax.eval_shape(lambda: init_pool(MODEL, cache))


def test_fp8_is_e4m3_and_auto_the_models():
    kinds = ("fp8", "fp8_e4m3", "auto", "bfloat16")
    dtypes = [pool_dtype(MODEL, replace(CACHE, dtype=kind)) for kind in kinds]
    assert dtypes == ["float8_e4m3fn", "float8_e4m3fn", "float32", "bfloat16"]


def test_a_one_byte_head_of_128_takes_half_of_what_bfloat16_takes_and_a_32nd():
    model = replace(MODEL, head_dim=128, dtype="bfloat16")
    half, whole = (block_bytes(model, replace(CACHE, dtype=kind)) for kind in ("int8", "auto"))
    assert half / whole == 0.5 + 1 / 64


def test_the_abstract_pool_is_the_pool_without_memory():
    abstract = jax.eval_shape(lambda: init_pool(MODEL, CACHE))
    assert pool_struct(MODEL, CACHE) == abstract


@pytest.mark.parametrize(
    ("dtype", "stored"), [("float32", "float32"), ("float16", "float16"), ("bfloat16", "uint16")]
)
def test_bfloat16_is_kept_as_bits_on_a_cpu(monkeypatch, dtype, stored):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert storage_dtype(dtype) == np.dtype(stored)
    assert init_pool(replace(MODEL, dtype=dtype), CACHE).k[0].dtype == np.dtype(stored)


def test_bfloat16_is_kept_as_it_is_elsewhere(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert storage_dtype("bfloat16") == jnp.bfloat16


def test_copying_blocks_takes_them_from_before_any_copy():
    source, target = jnp.array([1, 3, 0], jnp.int32), jnp.array([3, 4, 0], jnp.int32)
    pool = jax.jit(copy_blocks)(make_counted_pool(), source, target)
    assert first_numbers(pool.k[0]) == [0, 1, 2, 1, 3]
    assert first_numbers(pool.k[2]) == [20, 21, 22, 21, 23]
    assert first_numbers(pool.v[2]) == [-20, -21, -22, -21, -23]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_copying_blocks_happens_in_the_donated_pool(dtype):
    model, cache = replace(MODEL, dtype=dtype), replace(CACHE, num_blocks=1000)
    pool, ids = init_pool(model, cache), jnp.zeros(4, jnp.int32)
    jitted = jax.jit(copy_blocks, donate_argnames=("pool",))
    memory = jitted.lower(pool, ids, ids).compile().memory_analysis()
    assert memory.alias_size_in_bytes == pool.num_bytes
    assert memory.temp_size_in_bytes < 20_000
