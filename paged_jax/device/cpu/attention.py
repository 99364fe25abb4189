"""Paged attention and the KV write in C++: the back end "cpu"; `csrc/attention_step.h` says how.

A row's result depends on its own context alone, and not on the number of threads.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from paged_jax.device.cpu import kernels
from pallas_kernels import reference

POOLS = (jnp.float32, jnp.bfloat16, jnp.uint16)
NO_WINDOW = 1 << 40

Slots = Int[Array, " tokens"]
Heads = tuple[Float[Array, "tokens q_heads head_dim"], reference.New, reference.New]
Angles = tuple[Float32[Array, "tokens half_dim"], Float32[Array, "tokens half_dim"]]


def paged_attention(  # noqa: PLR0913
    q: Float[Array, "tokens q_heads head_dim"],
    k_pool: reference.Pool,
    v_pool: reference.Pool,
    block_tables: Int[Array, "seqs max_blocks"],
    query_starts: Int[Array, " seqs+1"],
    kv_lens: Int[Array, " seqs"],
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: reference.Sinks | None = None,
    k_scales: reference.Scales | None = None,
    v_scales: reference.Scales | None = None,
) -> Float[Array, "tokens q_heads head_dim"]:
    """Attend as `reference.paged_attention` does, in float32 whatever the pool.

    Raises:
        NotImplementedError: the kernels cannot be used, or do not read such a pool.
    """
    check_pool(k_pool)
    assert k_scales is None and v_scales is None, "only pools of one-byte values have scales"
    arrays = [q.astype(jnp.float32), k_pool, v_pool, block_tables, query_starts, kv_lens]
    arrays += [] if sinks is None else [sinks.astype(jnp.float32)]
    (out,) = kernels.call(
        "paged_attention",
        [jax.ShapeDtypeStruct(q.shape, jnp.float32)],
        arrays,
        scale=np.float32(scale),
        softcap=np.float32(softcap or 0.0),
        window=np.int64(NO_WINDOW if window is None else window),
    )
    return out.astype(q.dtype)


def write_kv(
    k_pool: reference.Pool,
    v_pool: reference.Pool,
    k: reference.New,
    v: reference.New,
    slots: Slots,
) -> tuple[reference.Pool, reference.Pool]:
    """Write as `reference.write_kv` does, but for slot 0: what goes there is not written.

    Raises:
        NotImplementedError: the kernels cannot be used, or do not write such values.
    """
    check_pool(k_pool)
    if k.dtype not in POOLS:
        raise NotImplementedError(f"the CPU kernels write no values of {k.dtype}")
    pools = [jax.ShapeDtypeStruct(pool.shape, pool.dtype) for pool in (k_pool, v_pool)]
    arrays = [k_pool, v_pool, k, v, slots]
    k_pool, v_pool = kernels.call("write_kv", pools, arrays, aliases={0: 0, 1: 1})
    return k_pool, v_pool


def rotate_and_write(
    heads: Heads, angles: Angles, pools: tuple[reference.Pool, reference.Pool], slots: Slots
) -> tuple[Float[Array, "tokens q_heads head_dim"], reference.Pool, reference.Pool]:
    """Rotate queries and keys to their positions and write keys and values.

    Args:
        heads: queries, keys, values.
        angles: cosine and sine of each token's.
    Returns:
        the rotated queries and the new pools.
    Raises:
        NotImplementedError: the kernels cannot be used, or do not write such values.
    """
    check_pool(pools[0])
    if heads[0].dtype != jnp.float32:
        raise NotImplementedError(f"the CPU kernels rotate no heads of {heads[0].dtype}")
    results = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (heads[0], *pools)]
    arrays = [*pools, *heads, *angles, slots]
    q, k_pool, v_pool = kernels.call("rotate_write", results, arrays, aliases={0: 1, 1: 2})
    return q, k_pool, v_pool


def check_pool(pool: reference.Pool) -> None:
    """Raise NotImplementedError where the kernels do not read and write the pool."""
    if not kernels.are_usable():
        raise NotImplementedError("the CPU kernels cannot be used here")
    if pool.dtype not in POOLS:
        raise NotImplementedError(f"the CPU kernels read no pool of {pool.dtype}")
