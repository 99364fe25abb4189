"""Paged decode in Mosaic GPU, for Hopper: one program for a query token, a KV head and a part of
the context.

Keys are the left factor of the tensor cores, whose 64 rows are positions; queries, as few as the
group has heads, are the right one, whose columns come by eights. Source: as `decode`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from pallas_kernels.decode import Partials, combine, token_contexts
from pallas_kernels.mosaic_context import (
    SWIZZLED,
    TILE_KV,
    Blocks,
    Live,
    Memory,
    Ring,
    compiler_params,
    filled,
    interpreter,
    iota,
    live_tiles,
    load_tiles,
    log2_scores,
    product,
    ring,
    split_blocks,
    wipe_tail,
)
from pallas_kernels.online_softmax import LOWEST, Rule, first_seen
from pallas_kernels.tiles import H200_SMS, Pool, Sinks, choose_splits

BLOCKS_PER_SM = 2
SHARED_BYTES = 108 << 10  # for a program's own use, if two are to fit an SM
SWIZZLED_FLOAT32 = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))


class Scratch(NamedTuple):
    """A program's shared memory; rows are the group's heads, filled up to a multiple of 8."""

    ring: Ring
    q: Memory  # [rows head_dim]
    weights: Memory  # [rows tile_kv]
    acc: Memory  # [rows head_dim]
    stats: Memory  # [2 rows]
    q_ready: Memory


class Sums(NamedTuple):
    """An online softmax under way; exponents are of 2."""

    acc: Array  # [head_dim rows]
    top: Array  # [rows]
    total: Array  # [tile_kv rows], to be summed


def paged_decode(
    q: Float[Array, "tokens q_heads head_dim"],
    k_pool: Pool,
    v_pool: Pool,
    block_tables: Int[Array, "seqs max_blocks"],
    query_starts: Int[Array, " seqs+1"],
    kv_lens: Int[Array, " seqs"],
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Sinks | None = None,
    num_splits: int | None = None,
    num_sms: int = H200_SMS,
    interpret: bool = False,
) -> Float[Array, "tokens q_heads head_dim"]:
    """Attend as `reference.paged_attention` does, for steps of about one query a sequence.

    Args:
        num_splits: parts each context is cut into; None chooses from the shapes.
        num_sms: streaming multiprocessors of the GPU, for that choice.
        interpret: run on a CPU.
    """
    tokens, q_heads, head_dim = q.shape
    kv_heads = k_pool.shape[2]
    context = block_tables.shape[1] * k_pool.shape[1]
    splits = num_splits or choose_splits(tokens * kv_heads, context, BLOCKS_PER_SM, num_sms)
    seq, kv_len = token_contexts(kv_lens, query_starts, tokens)
    rule = Rule(scale, window, softcap, head_dim, TILE_KV)
    group = q_heads // kv_heads
    rows = jnp.pad(q.reshape(tokens, kv_heads, group, head_dim), _fill(group))
    k_blocks, v_blocks, tables = split_blocks(k_pool, v_pool, block_tables)
    call = _decode_call(rows, k_blocks, splits, rule, interpret)
    acc, stats = call(seq, kv_len, tables, rows, k_blocks, v_blocks)
    acc = acc[..., :group, :].reshape(splits, *q.shape)
    top, total = (stats[..., i, :group].reshape(splits, tokens, q_heads) for i in (0, 1))
    return combine(Partials(acc, top, total), sinks).astype(q.dtype)


def _fill(group: int) -> tuple[tuple[int, int], ...]:
    """How to fill up the heads [tokens kv_heads group head_dim] to a multiple of 8."""
    return ((0, 0), (0, 0), (0, -group % 8), (0, 0))


def _decode_call(q: Array, pool: Array, splits: int, rule: Rule, interpret: bool):
    """The kernel over a grid of [splits tokens kv_heads]: heads lie side by side, and run first."""
    tokens, kv_heads, rows, head_dim = q.shape
    shape = (splits, tokens, kv_heads)
    return plgpu.kernel(
        functools.partial(_decode_kernel, rule=rule, splits=splits),
        out_type=(
            jax.ShapeDtypeStruct((*shape, rows, head_dim), jnp.float32),
            jax.ShapeDtypeStruct((*shape, 2, rows), jnp.float32),
        ),
        grid=shape,
        grid_names=("split", "token", "kv_head"),
        num_threads=2,
        thread_name="warpgroup",
        scratch_types=(_scratch(q, pool),),
        compiler_params=compiler_params(),
        kernel_name="paged_decode",
        interpret=interpreter(interpret),
    )


def _scratch(q: Array, pool: Array) -> Scratch:
    rows, head_dim = q.shape[2:]
    itemsize = q.dtype.itemsize
    fixed = rows * (head_dim * (itemsize + 4) + TILE_KV * itemsize + 8)
    num_stages = (SHARED_BYTES - fixed) // (2 * TILE_KV * head_dim * itemsize)
    return Scratch(
        ring=ring(num_stages, pool, num_readers=1),
        q=plgpu.SMEM((rows, head_dim), q.dtype, transforms=SWIZZLED),
        weights=plgpu.SMEM((rows, TILE_KV), q.dtype, transforms=SWIZZLED),
        acc=plgpu.SMEM((rows, head_dim), jnp.float32, transforms=SWIZZLED_FLOAT32),
        stats=plgpu.SMEM((2, rows), jnp.float32),
        q_ready=plgpu.Barrier(),
    )


def _decode_kernel(
    seq_ref,  # [tokens]
    kv_len_ref,  # [tokens]
    tables_ref,  # [seqs max_blocks]
    q_ref,  # [tokens kv_heads rows head_dim]
    k_ref,  # [blocks block_size kv_heads head_dim]
    v_ref,
    acc_ref,  # [splits tokens kv_heads rows head_dim]
    stats_ref,  # [splits tokens kv_heads 2 rows]: maxima and sums
    scratch: Scratch,
    *,
    rule: Rule,
    splits: int,
):
    split, token, kv_head = map(jax.lax.axis_index, ("split", "token", "kv_head"))
    stop = kv_len_ref[token]
    live = _share(live_tiles(first_seen(stop - 1, rule.window), stop, k_ref), split, splits)

    @pl.when(jax.lax.axis_index("warpgroup") == 1)
    def _load() -> None:
        plgpu.copy_gmem_to_smem(q_ref.at[token, kv_head], scratch.q, scratch.q_ready)
        load_tiles(scratch.ring, Blocks(k_ref, v_ref, tables_ref, seq_ref[token], kv_head), live)

    @pl.when(jax.lax.axis_index("warpgroup") == 0)
    def _attend() -> None:
        plgpu.barrier_wait(scratch.q_ready)
        _store(_attend_tiles(scratch, live, rule), scratch)
        at = (split, token, kv_head)
        plgpu.copy_smem_to_gmem(scratch.acc, acc_ref.at[at])
        plgpu.copy_smem_to_gmem(scratch.stats, stats_ref.at[at])
        plgpu.wait_smem_to_gmem(0)


def _share(live: Live, split: Array, splits: int) -> Live:
    """The tiles that one of the splits takes."""
    share = pl.cdiv(live.num_tiles, splits)
    first = split * share
    num_tiles = jnp.maximum(jnp.minimum(share, live.num_tiles - first), 0)
    return live._replace(base=live.base + first * TILE_KV, num_tiles=num_tiles)


def _attend_tiles(scratch: Scratch, live: Live, rule: Rule) -> Sums:
    rows, head_dim = scratch.q.shape
    init = Sums(
        acc=filled((head_dim, rows), 0.0),
        top=filled((rows,), LOWEST, without=0),
        total=filled((TILE_KV, rows), 0.0),
    )
    add = functools.partial(_add_tile, scratch=scratch, live=live, rule=rule)
    return jax.lax.fori_loop(0, live.num_tiles, add, init)


def _add_tile(tile: Array, sums: Sums, *, scratch: Scratch, live: Live, rule: Rule) -> Sums:
    """Add one tile. Where nothing is seen yet sums weights of 1; the first score wipes them."""
    ring = scratch.ring
    stage = jax.lax.rem(tile, ring.k.shape[0])
    start = live.base + tile * TILE_KV
    plgpu.barrier_wait(ring.k_ready.at[stage])
    scores = log2_scores(product(ring.k.at[stage], scratch.q.T), rule)  # [tile_kv rows]
    pos = iota(scores.shape, 0) + start
    scores = jnp.where((pos >= live.start) & (pos < live.stop), scores, LOWEST)
    top = jnp.maximum(sums.top, jnp.max(scores, axis=0))
    decay = jnp.exp2(sums.top - top)
    weights = jnp.exp2(scores - _down(top, scores))
    total = sums.total * _down(decay, scores) + weights
    narrow = weights.astype(scratch.weights.dtype)
    scratch.weights.T[...] = plgpu.layout_cast(narrow, plgpu.Layout.WGMMA_TRANSPOSED)
    plgpu.barrier_wait(ring.v_ready.at[stage])
    wipe_tail(ring.v.at[stage], live.stop - start)
    plgpu.commit_smem()
    part = product(ring.v.at[stage].T, scratch.weights.T)  # [head_dim rows]
    plgpu.barrier_arrive(ring.released.at[stage])
    return Sums(sums.acc * _down(decay, part) + part, top, total)


def _down(row: Array, like: Array) -> Array:
    """Repeat a row [rows] for each of the first axis of an array [n rows]."""
    return jax.lax.broadcast_in_dim(row, like.shape, (1,))


def _store(sums: Sums, scratch: Scratch) -> None:
    scratch.acc.T[...] = plgpu.layout_cast(sums.acc, plgpu.Layout.WGMMA_TRANSPOSED)
    scratch.stats.at[0][...] = sums.top
    scratch.stats.at[1][...] = jnp.sum(sums.total, axis=0)
    plgpu.commit_smem()
