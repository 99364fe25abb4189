"""Tile sizes of the Triton kernels, the number of context splits, and what the kernels refuse.

Everything here is decided from shapes, at trace time.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array

from pallas_kernels import reference

Pool = reference.Pool
Scales = reference.Scales
Sinks = reference.Sinks

TILE_KV = 64
MIN_SPLIT_TOKENS = 256
MAX_SPLITS = 64
WAVES = 2
H200_SMS = 132
MAX_HEAD_DIM = 256
MAX_GROUP = 32
MAX_BLOCK_SIZE = 256


@dataclass(frozen=True)
class Tile:
    """What one program of a kernel works on.

    Attributes:
        rows: rows of the left factor, query heads of the group times query tokens.
        kv: positions of the context a loop turn takes, whatever the block size.
        blocks_per_sm: how many programs an SM holds, from the compile check.
    """

    rows: int
    kv: int
    num_warps: int
    num_stages: int
    blocks_per_sm: int


def decode_tile(group: int, head_dim: int, q_dtype: jnp.dtype, kv_dtype: jnp.dtype) -> Tile:
    """Choose the tile of one query token: its group, filled up to the 16 rows of a tensor core."""
    rows, dim = padded(group), max(64, padded(head_dim))
    if q_dtype.itemsize == 4:
        return Tile(rows, 16, num_warps=rows // 4, num_stages=2, blocks_per_sm=4)
    is_narrow = kv_dtype.itemsize == 1
    kv = TILE_KV // 2 if is_narrow and dim > 64 else TILE_KV
    blocks_per_sm = ({64: 5, 128: 4, 256: 3} if is_narrow else {64: 7, 128: 5, 256: 3})[dim]
    return Tile(rows, kv, num_warps=4, num_stages=3, blocks_per_sm=blocks_per_sm)


def prefill_tile(head_dim: int, q_dtype: jnp.dtype, kv_dtype: jnp.dtype) -> Tile:
    """Choose the tile of a run of query tokens: 64 rows are one wgmma.

    Products of float32 are exact, so they run outside the tensor cores, in tiles that do not spill.
    """
    is_wide = padded(head_dim) > 128
    if q_dtype.itemsize == 4:
        rows, num_stages = (32, 1) if is_wide else (64, 2)
        return Tile(rows, 16, num_warps=8, num_stages=num_stages, blocks_per_sm=2)
    if is_wide:
        kv = TILE_KV // 2 if kv_dtype.itemsize == 1 else TILE_KV
        return Tile(64, kv, num_warps=8, num_stages=2, blocks_per_sm=1)
    return Tile(64, TILE_KV, num_warps=4, num_stages=3, blocks_per_sm=2)


def padded(size: int) -> int:
    """Return the power of two, at least 16, that a factor of a product is filled up to."""
    return max(16, 1 << (size - 1).bit_length())


def choose_splits(num_programs: int, context: int, blocks_per_sm: int, num_sms: int) -> int:
    """Choose into how many parts each context is cut: enough to fill the GPU, none too short.

    Args:
        num_programs: query tokens times KV heads, padding included.
        context: positions of the longest context the block tables can hold.
        num_sms: streaming multiprocessors of the GPU.
    """
    wanted = -(-WAVES * num_sms * blocks_per_sm // num_programs)
    longest = max(1, context // MIN_SPLIT_TOKENS)
    return min(wanted, longest, MAX_SPLITS)


def check_supported(q: Array, pool: Pool, scales: tuple[Scales | None, Scales | None]) -> None:
    """Refuse what the kernels cannot do.

    Raises:
        NotImplementedError: naming the limit.
    """
    group = q.shape[1] // pool.shape[2]
    stored = jnp.dtype(jnp.bfloat16) if pool.dtype == jnp.uint16 else pool.dtype
    is_narrow = pool.dtype.itemsize == 1
    num_scales = sum(scale is not None for scale in scales)
    # Offsets count elements in 32 bits up to arrays of 2^32 bytes, and have a sign.
    overflows = is_narrow and 1 << 31 <= pool.size < 1 << 32
    limits = {
        f"head_dim {q.shape[2]} is above {MAX_HEAD_DIM}": q.shape[2] > MAX_HEAD_DIM,
        f"{group} query heads per KV head are above {MAX_GROUP}": group > MAX_GROUP,
        f"block_size {pool.shape[1]} is above {MAX_BLOCK_SIZE}": pool.shape[1] > MAX_BLOCK_SIZE,
        f"a pool of {pool.size} one-byte values lies between 2^31 and 2^32": overflows,
        f"queries are {q.dtype} but the pool is {stored}": not is_narrow and stored != q.dtype,
        f"a pool of {stored} with {num_scales} arrays of scales": num_scales != 2 * is_narrow,
    }
    for limit, is_exceeded in limits.items():
        if is_exceeded:
            raise NotImplementedError(f"Triton paged attention: {limit}")
