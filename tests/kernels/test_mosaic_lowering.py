"""Every Mosaic GPU kernel and shape lowers for an NVIDIA GPU on a machine that has none."""

from functools import partial

import pytest
from lowering import lower_call, needs_no_gpu

from pallas_kernels import mosaic

pytestmark = needs_no_gpu
lower = partial(lower_call, mosaic.paged_attention)


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
