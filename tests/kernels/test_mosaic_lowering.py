"""Every Mosaic GPU kernel and shape lowers for an NVIDIA GPU on a machine that has none."""

import functools

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels import mosaic

pytestmark = pytest.mark.skipif(
    jax.__version_info__ >= (0, 11),
    reason="from JAX 0.11 on, lowering for a GPU needs the CUDA plug-in to describe one: "
    "the compile check of tests/gpu_compile does it there",
)


def lower(
    tokens: int,
    *,
    group: int = 4,
    head_dim: int = 128,
    block_size: int = 16,
    dtype: str = "bfloat16",
    **rule,
) -> str:
    """Lower one call for 8 sequences of up to 4,096 tokens and 2 KV heads."""
    pool = jax.ShapeDtypeStruct((64, block_size, 2, head_dim), dtype)
    ints = ((8, 4096 // block_size), (9,), (8,))
    arrays = [jax.ShapeDtypeStruct((tokens, 2 * group, head_dim), dtype), pool, pool]
    arrays += [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ints]
    attend = jax.jit(functools.partial(mosaic.paged_attention, scale=0.1, **rule))
    return attend.trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_every_head_and_type_lowers(dtype, head_dim):
    assert "mosaic_gpu" in lower(8, dtype=dtype, head_dim=head_dim)


@pytest.mark.parametrize("group", [1, 7, 8, 20, 32])
def test_every_group_lowers(group):
    assert "mosaic_gpu" in lower(8, group=group)


@pytest.mark.parametrize("block_size", [8, 32, 64, 256])
def test_every_block_size_lowers_in_a_window_with_a_cap(block_size):
    assert "mosaic_gpu" in lower(8, block_size=block_size, window=100, softcap=30.0)


@pytest.mark.parametrize("group", [1, 7, 32])
def test_prefill_of_every_group_lowers_in_blocks_wider_than_a_tile(group):
    assert "mosaic_gpu" in lower(64, group=group, block_size=256, window=100, softcap=30.0)


@pytest.mark.parametrize("tokens", [1, 8, 9, 512])
def test_every_number_of_tokens_lowers(tokens):
    assert "mosaic_gpu" in lower(tokens)
