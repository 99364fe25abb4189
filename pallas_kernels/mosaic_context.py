"""What the Mosaic GPU kernels for decode and prefill share: keys and values on their way to a tile.

One warpgroup of each program only loads. It looks blocks up in the table and has them copied to a
ring of buffers in shared memory (TMA), which the other warpgroups wait for and give back.
Source: Shah et al. 2024, arXiv:2407.08608, section 3.1 (warp specialisation).
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Int

from pallas_kernels.online_softmax import LOG2_E, Rule
from pallas_kernels.tiles import Pool, Scales

TILE_KV = 64
MAX_GROUP = 32
HEAD_DIMS = (64, 128)
HOPPER = "9.0"
Memory = Any  # a reference, or a part or a transpose of one: JAX has no public name for them
# Rows of 128 bytes, eight to a tile: what both the copies and the tensor cores read unshuffled.
SWIZZLED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


class Live(NamedTuple):
    """The positions that a program reads; its tiles lie side by side.

    Attributes:
        start: the first position that a query sees.
        stop: one past the last.
        base: where the first tile begins, at or before `start`, where a block begins.
        num_tiles: how many there are.
    """

    start: Int[Array, ""]
    stop: Int[Array, ""]
    base: Int[Array, ""]
    num_tiles: Int[Array, ""]


class Blocks(NamedTuple):
    """The blocks of one sequence and KV head, each small enough to lie in one tile."""

    k_pool: Memory  # [blocks block_size kv_heads head_dim]
    v_pool: Memory
    block_tables: Memory  # [seqs max_blocks]
    seq: Int[Array, ""]
    kv_head: Int[Array, ""]


class Ring(NamedTuple):
    """Buffers in shared memory that are filled and emptied in turn."""

    k: Memory  # [stages tile_kv head_dim]
    v: Memory
    k_ready: Memory
    v_ready: Memory
    released: Memory


def split_blocks(
    k_pool: Pool, v_pool: Pool, block_tables: Int[Array, "seqs max_blocks"]
) -> tuple[Array, Array, Array]:
    """See blocks wider than a tile as several that are as wide; nothing is moved in the pools."""
    parts = max(1, k_pool.shape[1] // TILE_KV)
    shape = (-1, k_pool.shape[1] // parts, *k_pool.shape[2:])
    tables = block_tables[:, :, None] * parts + jnp.arange(parts, dtype=jnp.int32)[None, None, :]
    return k_pool.reshape(shape), v_pool.reshape(shape), tables.reshape(block_tables.shape[0], -1)


def ring(num_stages: int, pool: Pool, num_readers: int) -> Ring:
    """Describe a ring whose buffers `num_readers` warpgroups give back."""
    shape = (num_stages, TILE_KV, pool.shape[3])
    buffer = plgpu.SMEM(shape, pool.dtype, transforms=SWIZZLED)
    copies = TILE_KV // pool.shape[1]
    ready = plgpu.Barrier(num_arrivals=copies, num_barriers=num_stages)
    released = plgpu.Barrier(num_arrivals=num_readers, num_barriers=num_stages)
    return Ring(buffer, buffer, ready, ready, released)


def live_tiles(start: Array, stop: Array, pool: Memory) -> Live:
    """Cut the positions start to stop - 1 into tiles."""
    base = start // pool.shape[1] * pool.shape[1]
    return Live(start, stop, base, pl.cdiv(stop - base, TILE_KV))


def load_tiles(ring: Ring, blocks: Blocks, live: Live) -> None:
    """Fill the ring with one tile after another, as soon as there is room."""
    num_stages = ring.k.shape[0]
    k_pool, v_pool = blocks.k_pool, blocks.v_pool

    @pl.loop(0, live.num_tiles)
    def _(tile: Array) -> None:
        stage = jax.lax.rem(tile, num_stages)
        pl.when(tile >= num_stages)(lambda: plgpu.barrier_wait(ring.released.at[stage]))
        sources = _sources(blocks, live, tile)
        for pool, buffer, ready in (
            (k_pool, ring.k, ring.k_ready),
            (v_pool, ring.v, ring.v_ready),
        ):
            for part, source in enumerate(sources):
                rows = pl.ds(part * pool.shape[1], pool.shape[1])
                plgpu.copy_gmem_to_smem(pool.at[source], buffer.at[stage, rows], ready.at[stage])


def wipe_tail(values: Memory, num_live: Array) -> None:
    """Zero the rows of a tile of values past the live ones, which weights of 0 do not silence."""

    @pl.when(num_live < TILE_KV)
    def _() -> None:
        tile = plgpu.layout_cast(values[...], plgpu.Layout.WGMMA)
        row = iota(tile.shape, 0)
        values[...] = jnp.where(row < num_live, tile, jnp.zeros((), tile.dtype))


def log2_scores(products: Array, rule: Rule) -> Array:
    """Turn products of queries and keys into scores in units of log2: exponents are of 2."""
    if rule.softcap is None:
        return products * jnp.float32(rule.scale * LOG2_E)
    # The hardware's own tanh has 11 bits.
    grown = jnp.exp2(products * jnp.float32(2 * LOG2_E * rule.scale / rule.softcap))
    return (1.0 - 2.0 / (grown + 1.0)) * jnp.float32(rule.softcap * LOG2_E)


def product(a: Memory, b: Memory) -> Array:
    """Multiply two matrices in shared memory on the tensor cores, with float32 sums."""

    def run(sums: Memory) -> Array:
        plgpu.wgmma(sums, a, b)
        return sums[...]

    return pl.run_scoped(run, plgpu.WGMMAAccumulatorRef((a.shape[0], b.shape[1]), jnp.float32))


def iota(shape: tuple[int, ...], axis: int) -> Array:
    """Count along an axis of an array that lies as the tensor cores' results do."""
    return plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=plgpu.Layout.WGMMA)


def filled(shape: tuple[int, ...], value: float, *, without: int | None = None) -> Array:
    """Return one value throughout a float32 array that lies as the tensor cores' results do.

    Args:
        without: the axis of those results that this array lacks, for it is what they reduce to.
    """
    layout = plgpu.Layout.WGMMA
    reduced = layout if without is None else layout.reduce(without)
    return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), reduced)


def check_supported(q: Array, pool: Pool, scales: tuple[Scales | None, Scales | None]) -> None:
    """Refuse what the kernels cannot do.

    Raises:
        NotImplementedError: naming the limit.
    """
    block_size, kv_heads, head_dim = pool.shape[1:]
    group = q.shape[1] // kv_heads
    capability = getattr(jax.local_devices()[0], "compute_capability", HOPPER)
    limits = {
        f"head_dim {head_dim} is none of {HEAD_DIMS}": head_dim not in HEAD_DIMS,
        f"{group} query heads per KV head are above {MAX_GROUP}": group > MAX_GROUP,
        f"block_size {block_size} is no multiple of 8 that divides {TILE_KV} or is divided by it": (
            block_size % 8 or math.gcd(block_size, TILE_KV) not in (block_size, TILE_KV)
        ),
        f"queries are {q.dtype}, not of 16 bits": q.dtype not in (jnp.bfloat16, jnp.float16),
        f"queries are {q.dtype} but the pool is {pool.dtype}": pool.dtype != q.dtype,
        "a pool with scales": any(scale is not None for scale in scales),
        f"compute capability {capability} is not {HOPPER}": capability != HOPPER,
    }
    for limit, is_exceeded in limits.items():
        if is_exceeded:
            raise NotImplementedError(f"Mosaic GPU paged attention: {limit}")


@functools.cache
def compiler_params() -> plgpu.CompilerParams:
    """How both kernels are compiled: the default from JAX 0.11 on, with the hardware's exp2."""
    semantics = plgpu.LoweringSemantics.Warpgroup
    return plgpu.CompilerParams(approx_math=True, lowering_semantics=semantics)


def interpreter(interpret: bool) -> object:
    """How `plgpu.kernel` is to run a kernel on a CPU: it stops where two threads race.

    Returns:
        None to run it on a GPU.
    Raises:
        NotImplementedError: this JAX has no such interpreter.
    """
    if not interpret:
        return None
    params = getattr(plgpu, "InterpretGPUParams", None)
    if params is None:
        raise NotImplementedError("Mosaic GPU paged attention: needs JAX 0.11 to be interpreted")
    return params(detect_races=True)


def _sources(blocks: Blocks, live: Live, tile: Array) -> list[tuple[Array, slice, Array]]:
    """The blocks of a tile, as indices of the pool; past the last live one, that one again."""
    size = blocks.k_pool.shape[1]
    first, last = (live.base + tile * TILE_KV) // size, (live.stop - 1) // size
    columns = (jnp.minimum(first + part, last) for part in range(TILE_KV // size))
    table = blocks.block_tables
    return [(table[blocks.seq, column], slice(None), blocks.kv_head) for column in columns]
