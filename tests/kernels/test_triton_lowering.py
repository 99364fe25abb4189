"""Every Triton kernel and shape lowers for an NVIDIA GPU on a machine that has none."""

from functools import partial

import jax.numpy as jnp
import pytest
from lowering import lower_call, needs_no_gpu

from pallas_kernels import triton

pytestmark = needs_no_gpu
lower = partial(lower_call, triton.paged_attention)


KERNELS = pytest.mark.parametrize(("tokens", "name"), [(8, "paged_decode"), (64, "paged_prefill")])


@KERNELS
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("head_dim", [8, 64, 80, 96, 128, 256])
def test_every_head_and_type_lowers(tokens, name, dtype, head_dim):
    assert name in lower(tokens, dtype=dtype, head_dim=head_dim)


@KERNELS
@pytest.mark.parametrize("pool_dtype", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize("head_dim", [80, 128, 256])
def test_every_pool_of_one_byte_values_lowers(tokens, name, pool_dtype, head_dim):
    assert name in lower(tokens, pool_dtype=pool_dtype, head_dim=head_dim)


@KERNELS
@pytest.mark.parametrize("group", [1, 3, 5, 7, 8, 32])
def test_every_group_lowers(tokens, name, group):
    assert name in lower(tokens, group=group)


@KERNELS
@pytest.mark.parametrize("block_size", [1, 5, 32, 256])
def test_float16_in_every_block_size_lowers_in_a_window_with_a_cap(tokens, name, block_size):
    assert name in lower(tokens, dtype="float16", block_size=block_size, window=100, softcap=30.0)


@KERNELS
@pytest.mark.parametrize("pool_dtype", ["bfloat16", "int8"])
def test_sinks_lower(tokens, name, pool_dtype):
    assert name in lower(tokens, pool_dtype=pool_dtype, sinks=jnp.ones(8, jnp.float32))


@pytest.mark.parametrize("tokens", [1, 2, 16, 512, 4096])
def test_every_number_of_tokens_lowers(tokens):
    assert "paged_" in lower(tokens)
