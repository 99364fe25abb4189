"""Lowering a kernel for an NVIDIA GPU on a machine that has none."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import pytest

needs_no_gpu = pytest.mark.skipif(
    jax.__version_info__ >= (0, 11),
    reason="from JAX 0.11 on, lowering for a GPU needs the CUDA plug-in to describe one: "
    "the compile check of tests/gpu_compile does it there",
)


def lower_call(
    paged_attention: Callable[..., jax.Array],
    tokens: int,
    *,
    group: int = 4,
    head_dim: int = 128,
    block_size: int = 16,
    dtype: str = "bfloat16",
    pool_dtype: str | None = None,
    **rule,
) -> str:
    """Lower one call for 8 sequences of up to 4,096 tokens and 2 KV heads."""
    pool = jax.ShapeDtypeStruct((64, block_size, 2, head_dim), pool_dtype or dtype)
    ints = ((8, 4096 // block_size), (9,), (8,))
    arrays = [jax.ShapeDtypeStruct((tokens, 2 * group, head_dim), dtype), pool, pool]
    arrays += [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ints]
    if pool.dtype.itemsize == 1:
        rule |= dict.fromkeys(("k_scales", "v_scales"), jnp.ones(pool.shape[:3], jnp.float32))
    attend = jax.jit(partial(paged_attention, scale=0.1, **rule))
    return attend.trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
