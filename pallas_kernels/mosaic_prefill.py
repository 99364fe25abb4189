"""Ragged paged prefill in Mosaic GPU, for Hopper: one program for a run of queries and a KV head.

Two warpgroups take 64 rows each, query heads of the group beside those of the next tokens, and
share the keys and values that a third one loads. Source: as `prefill`; Shah et al. 2024.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

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
from pallas_kernels.prefill import QueryTiles, cut_queries
from pallas_kernels.tiles import Pool

READERS = 2  # warpgroups that multiply
ROWS = 64  # of each of them
STAGES = 4


class Scratch(NamedTuple):
    """A program's shared memory; the result takes the place of the queries."""

    ring: Ring
    q: Memory  # [readers rows head_dim]
    weights: Memory  # [readers rows tile_kv]
    q_ready: Memory
    wiped: Memory


class Queries(NamedTuple):
    """The rows of one warpgroup: where they lie, and what the program's queries see together.

    Attributes:
        pos: position of the program's first query.
        group: query heads of a token; rows of a token lie side by side.
    """

    reader: Int[Array, ""]
    pos: Int[Array, ""]
    group: int
    live: Live


class Sums(NamedTuple):
    """An online softmax under way; exponents are of 2."""

    acc: Array  # [rows head_dim]
    top: Array  # [rows]
    total: Array  # [rows]


def paged_prefill(
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
    interpret: bool = False,
) -> Float[Array, "tokens q_heads head_dim"]:
    """Attend as `reference.paged_attention` does, for steps with many queries a sequence.

    Args:
        interpret: run on a CPU.
    """
    group = q.shape[1] // k_pool.shape[2]
    tile_q = READERS * ROWS // group
    tiles = cut_queries(kv_lens, query_starts, q.shape[0], tile_q)
    rows = _to_rows(q, tiles, k_pool.shape[2], tile_q)
    rule = Rule(scale, window, softcap, q.shape[2], TILE_KV)
    k_blocks, v_blocks, tables = split_blocks(k_pool, v_pool, block_tables)
    call = _prefill_call(rows, k_blocks, group, rule, interpret)
    return _from_rows(call(*tiles, tables, rows, k_blocks, v_blocks), tiles, q.shape, tile_q)


def _to_rows(q: Array, tiles: QueryTiles, kv_heads: int, tile_q: int) -> Array:
    """Gather the queries of each tile and KV head [tiles kv_heads readers rows head_dim]."""
    tokens, _, head_dim = q.shape
    token = tiles.start[:, None] + jnp.arange(tile_q, dtype=jnp.int32)[None, :]
    rows = q[jnp.minimum(token, tokens - 1)].reshape(*token.shape, kv_heads, -1, head_dim)
    rows = rows.swapaxes(1, 2).reshape(token.shape[0], kv_heads, -1, head_dim)
    rows = jnp.pad(rows, ((0, 0), (0, 0), (0, READERS * ROWS - rows.shape[2]), (0, 0)))
    return rows.reshape(*rows.shape[:2], READERS, ROWS, head_dim)


def _from_rows(rows: Array, tiles: QueryTiles, shape: tuple[int, ...], tile_q: int) -> Array:
    """Undo `_to_rows`."""
    tokens, q_heads, head_dim = shape
    num_tiles, kv_heads = rows.shape[:2]
    group = q_heads // kv_heads
    rows = rows.reshape(num_tiles, kv_heads, READERS * ROWS, head_dim)[:, :, : tile_q * group]
    rows = rows.reshape(num_tiles, kv_heads, tile_q, group, head_dim)
    token = jnp.arange(tokens, dtype=jnp.int32)
    is_before = (tiles.stop[None, :] <= token[:, None]) & (tiles.start < tiles.stop)[None, :]
    tile = jnp.sum(is_before, axis=1, dtype=jnp.int32)
    return rows[tile, :, token - tiles.start[tile]].reshape(shape)


def _prefill_call(q: Array, pool: Array, group: int, rule: Rule, interpret: bool):
    """The kernel over a grid of [tiles kv_heads]."""
    return plgpu.kernel(
        functools.partial(_prefill_kernel, rule=rule, group=group),
        out_type=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid=q.shape[:2],
        grid_names=("tile", "kv_head"),
        num_threads=READERS + 1,
        thread_name="warpgroup",
        scratch_types=(_scratch(q, pool),),
        compiler_params=compiler_params(),
        kernel_name="paged_prefill",
        interpret=interpreter(interpret),
    )


def _scratch(q: Array, pool: Array) -> Scratch:
    shape, dtype = q.shape[2:], q.dtype
    return Scratch(
        ring=ring(STAGES, pool, num_readers=READERS),
        q=plgpu.SMEM(shape, dtype, transforms=SWIZZLED),
        weights=plgpu.SMEM((*shape[:2], TILE_KV), dtype, transforms=SWIZZLED),
        q_ready=plgpu.Barrier(num_arrivals=READERS),
        wiped=plgpu.Barrier(num_arrivals=READERS),
    )


def _prefill_kernel(
    seq_ref,  # [tiles]
    start_ref,
    stop_ref,
    shift_ref,
    tables_ref,  # [seqs max_blocks]
    q_ref,  # [tiles kv_heads readers rows head_dim]
    k_ref,  # [blocks block_size kv_heads head_dim]
    v_ref,
    out_ref,  # as q
    scratch: Scratch,
    *,
    rule: Rule,
    group: int,
):
    tile, kv_head, warpgroup = map(jax.lax.axis_index, ("tile", "kv_head", "warpgroup"))
    first, stop = start_ref[tile] + shift_ref[tile], stop_ref[tile] + shift_ref[tile]
    live = live_tiles(first_seen(first, rule.window), stop, k_ref)
    at = (tile, kv_head)

    @pl.when(warpgroup == READERS)
    def _load() -> None:
        plgpu.set_max_registers(40, action="decrease")
        for reader in range(READERS):
            plgpu.copy_gmem_to_smem(q_ref.at[*at, reader], scratch.q.at[reader], scratch.q_ready)
        load_tiles(scratch.ring, Blocks(k_ref, v_ref, tables_ref, seq_ref[tile], kv_head), live)

    @pl.when(warpgroup < READERS)
    def _attend() -> None:
        plgpu.set_max_registers(232, action="increase")
        plgpu.barrier_wait(scratch.q_ready)
        sums = _attend_tiles(scratch, Queries(warpgroup, first, group, live), rule)
        result = scratch.q.at[warpgroup]
        share = 1.0 / jnp.where(sums.total > 0.0, sums.total, 1.0)
        result[...] = (sums.acc * _across(share, sums.acc)).astype(result.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(result, out_ref.at[*at, warpgroup])
        plgpu.wait_smem_to_gmem(0)


def _attend_tiles(scratch: Scratch, queries: Queries, rule: Rule) -> Sums:
    init = Sums(
        acc=filled((ROWS, rule.head_dim), 0.0),
        top=filled((ROWS,), LOWEST, without=1),
        total=filled((ROWS,), 0.0, without=1),
    )
    add = functools.partial(_add_tile, scratch=scratch, queries=queries, rule=rule)
    return jax.lax.fori_loop(0, queries.live.num_tiles, add, init)


def _add_tile(tile: Array, sums: Sums, *, scratch: Scratch, queries: Queries, rule: Rule) -> Sums:
    """Add one tile. A row that sees nothing yet sums weights of 1; its first score wipes them."""
    ring, reader = scratch.ring, queries.reader
    stage = jax.lax.rem(tile, STAGES)
    start = queries.live.base + tile * TILE_KV
    plgpu.barrier_wait(ring.k_ready.at[stage])
    scores = log2_scores(product(scratch.q.at[reader], ring.k.at[stage].T), rule)
    scores = jnp.where(_sees(queries, start, rule.window), scores, LOWEST)
    top = jnp.maximum(sums.top, jnp.max(scores, axis=1))
    decay = jnp.exp2(sums.top - top)
    weights = jnp.exp2(scores - _across(top, scores))
    total = sums.total * decay + jnp.sum(weights, axis=1)
    scratch.weights.at[reader][...] = weights.astype(scratch.weights.dtype)
    plgpu.barrier_wait(ring.v_ready.at[stage])
    _wipe_tail_once(scratch, ring.v.at[stage], queries.live.stop - start, reader)
    plgpu.commit_smem()
    part = product(scratch.weights.at[reader], ring.v.at[stage])  # [rows head_dim]
    plgpu.barrier_arrive(ring.released.at[stage])
    return Sums(sums.acc * _across(decay, part) + part, top, total)


def _wipe_tail_once(scratch: Scratch, values: Memory, num_live: Array, reader: Array) -> None:
    """Let the first warpgroup wipe the last tile, and the others wait for it."""

    @pl.when(num_live < TILE_KV)
    def _() -> None:
        @pl.when(reader == 0)
        def _() -> None:
            wipe_tail(values, num_live)
            plgpu.commit_smem()

        plgpu.barrier_arrive(scratch.wiped)
        plgpu.barrier_wait(scratch.wiped)


def _sees(queries: Queries, start: Array, window: int | None) -> Array:
    """Whether each row [rows tile_kv] attends to the positions from `start` on.

    Row r is of the token at `pos + r // group`, compared without dividing; rows past the last query
    see what that one sees.
    """
    shape = (ROWS, TILE_KV)
    last = (queries.live.stop - queries.pos) * queries.group - 1
    row = jnp.minimum(iota(shape, 0) + queries.reader * ROWS, last)
    ahead = (iota(shape, 1) + (start - queries.pos)) * queries.group
    seen = row >= ahead
    return seen if window is None else seen & (row < ahead + window * queries.group)


def _across(column: Array, like: Array) -> Array:
    """Repeat a column [rows] for each of the last axis of an array [rows n]."""
    return jax.lax.broadcast_in_dim(column, like.shape, (0,))
