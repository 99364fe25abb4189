"""Paged attention, tile by tile, and the KV write in plain jnp: the back end called "xla".

Every sequence's context lies in blocks of a shared pool, found through its block table. Queries
are packed: rows query_starts[i] to query_starts[i + 1] - 1 are the newest tokens of sequence i.
Slots no live token owns, and table entries past a sequence's context, may hold anything.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.pool_view import (
    FLOATS,
    LOWEST,
    NO_MODS,
    Mods,
    New,
    Pool,
    Rule,
    Scales,
    Sinks,
    View,
    capped,
    count_le,
    dot,
    last_seen,
    modded,
    owner,
    reach_of,
    read,
    scaled,
    sees,
    slots_of,
)

TILE_KV = 128
TILE_Q = 16
NUM_LANES = 8


def paged_attention(
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
    k_scales: Scales | None = None,
    v_scales: Scales | None = None,
    mods: Mods = NO_MODS,
) -> Float[Array, "tokens q_heads head_dim"]:
    """Do as `dense.paged_attention_dense`, whose arguments these are, tile by tile: in memory that
    depends on neither the pool nor the context.

    Sequences of one query (decode) and of many (prefill) are cut into tiles of their own widths, so
    that among steps of one shape a row's result does not depend on what else is computed.
    """
    view = View(k_pool, v_pool, block_tables, query_starts, kv_lens, k_scales, v_scales)
    rule = Rule(scale, window, softcap, sinks, mods)
    lens = query_starts[1:] - query_starts[:-1]
    if q.shape[0] <= kv_lens.shape[0]:
        return _attend(q, view, rule, lens > 0, 1)
    narrow = _attend(q, view, rule, lens == 1, 1)
    return narrow + _attend(q, view, rule, lens > 1, TILE_Q)


def write_kv(
    k_pool: Pool,
    v_pool: Pool,
    k: New,
    v: New,
    slots: Int[Array, " tokens"],
) -> tuple[Pool, Pool]:
    """Write each token's key and value to its slot; in place where the pools are donated.

    Args:
        slots: block * block_size + offset, in range; distinct except slot 0, which takes padding.
    """
    return _write(k_pool, k, slots), _write(v_pool, v, slots)


def write_scales(
    k_scales: Scales,
    v_scales: Scales,
    k: Float[Array, "tokens kv_heads"],
    v: Float[Array, "tokens kv_heads"],
    slots: Int[Array, " tokens"],
) -> tuple[Scales, Scales]:
    """Write the scales of each token's key and value as `write_kv` writes these."""
    return _write(k_scales, k, slots), _write(v_scales, v, slots)


class _Tiles(NamedTuple):
    """Packed queries in tiles, each of one sequence; the lanes of a group run side by side."""

    seq: Array  # [groups lanes]
    rows: Array  # [groups lanes tile_q], of q
    query_pos: Array  # [groups lanes tile_q], -1 where there is no query
    num_groups: Array  # how many groups hold a tile: the first ones


class _Sums(NamedTuple):
    """An online softmax under way."""

    top: Array  # [lanes kv_heads rows]
    total: Array  # [lanes kv_heads rows]
    acc: Array  # [lanes kv_heads rows head_dim]


def _attend(q: Array, view: View, rule: Rule, is_taken: Array, tile_q: int) -> Array:
    """Attention of the sequences taken, which have queries; zeros for all other tokens."""
    tiles, tile_starts = _cut(view, is_taken, q.shape[0], tile_q)

    def run(group: Array | int, out: Array) -> Array:
        rows = q.at[tiles.rows[group]].get(mode="promise_in_bounds")
        result = _attend_group(rows, view, rule, tiles.seq[group], tiles.query_pos[group])
        return jax.lax.dynamic_update_index_in_dim(out, result, group, 0)

    out = jnp.zeros((*tiles.rows.shape, *q.shape[1:]), q.dtype)
    out = jax.lax.fori_loop(0, tiles.num_groups, run, out).reshape(-1, *q.shape[1:])
    seq, query_pos = owner(view, q.shape[0])
    offset = jnp.arange(q.shape[0], dtype=jnp.int32) - view.query_starts[seq]
    is_mine = is_taken[seq] & (query_pos >= 0)
    row = jnp.where(is_mine, tile_starts[seq] * tile_q + offset, 0)
    out = out.at[row].get(mode="promise_in_bounds")
    return jnp.where(is_mine[:, None, None], out, jnp.zeros((), q.dtype))


def _cut(view: View, is_taken: Array, num_tokens: int, tile_q: int) -> tuple[_Tiles, Array]:
    """Cut the queries of the sequences taken into tiles; also each sequence's first tile."""
    starts, num_seqs = view.query_starts, view.kv_lens.shape[0]
    lens = starts[1:] - starts[:-1]
    counts = jnp.where(is_taken, (lens + tile_q - 1) // tile_q, 0)
    ends = jnp.cumsum(counts)
    most = (num_tokens + (tile_q - 1) * min(num_seqs, num_tokens)) // tile_q
    lanes = min(NUM_LANES, most)
    tile = jnp.arange(-(-most // lanes) * lanes, dtype=jnp.int32)
    seq = count_le(ends, tile)
    is_tile = seq < num_seqs
    seq = jnp.where(is_tile, seq, 0)
    first = starts[seq] + (tile - ends[seq] + counts[seq]) * tile_q
    rows = first[:, None] + jnp.arange(tile_q, dtype=jnp.int32)[None, :]
    is_row = is_tile[:, None] & (rows < starts[seq + 1][:, None])
    query_pos = rows + (view.kv_lens - starts[1:])[seq][:, None]
    tiles = _Tiles(
        seq=seq.reshape(-1, lanes),
        rows=jnp.where(is_row, rows, 0).reshape(-1, lanes, tile_q),
        query_pos=jnp.where(is_row, query_pos, -1).reshape(-1, lanes, tile_q),
        num_groups=(ends[-1] + lanes - 1) // lanes,
    )
    return tiles, ends - counts


def _attend_group(q: Array, view: View, rule: Rule, seq: Array, query_pos: Array) -> Array:
    """Online softmax over the context tiles of a group; q is [lanes tile_q q_heads head_dim]."""
    kv_heads = view.k_pool.shape[2]
    folded, row_pos = _fold(q, query_pos, kv_heads)
    lanes, _, rows, head_dim = folded.shape
    last, row_last = last_seen(query_pos, rule.mods), last_seen(row_pos, rule.mods)
    reach = reach_of(last, rule.window)
    group = q.shape[2] // kv_heads
    heads = jnp.arange(kv_heads, dtype=jnp.int32)[:, None] * group
    heads = heads + jnp.arange(rows, dtype=jnp.int32)[None, :] % group  # [kv_heads rows]

    def add(tile: Array | int, sums: _Sums) -> _Sums:
        context_pos = tile * TILE_KV + jnp.arange(TILE_KV, dtype=jnp.int32)
        slots = slots_of(view, seq, context_pos, reach)
        k, v = (read(pool, slots).astype(q.dtype) for pool in (view.k_pool, view.v_pool))
        scores = scaled(dot("lkrd,lkcd->lkcr", folded, k), view.k_scales, slots)
        scores = capped(scores * jnp.float32(rule.scale), rule.softcap)
        seen = sees(row_last[:, None, :], context_pos[None, :, None], rule.window)
        places = (row_pos[:, None, None], context_pos[None, None, :, None], heads[None, :, None])
        scores = modded(scores, seen[:, None], places, rule.mods)
        # A row that has seen nothing yet gathers weights of 1; its first real score wipes them out.
        top = jnp.maximum(sums.top, jnp.max(scores, axis=2))
        weights = jnp.exp(scores - top[:, :, None, :])
        decay = jnp.exp(sums.top - top)
        shares = scaled(weights, view.v_scales, slots).astype(v.dtype)
        part = dot("lkcr,lkcd->lkrd", shares, v)
        total = sums.total * decay + jnp.sum(weights, axis=2)
        return _Sums(top, total, sums.acc * decay[..., None] + part)

    shape = (lanes, kv_heads, rows)
    init = _Sums(
        jnp.full(shape, LOWEST, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, head_dim), jnp.float32),
    )
    first, last = jnp.min(reach.start) // TILE_KV, (jnp.max(reach.stop) - 1) // TILE_KV
    sums = jax.lax.fori_loop(first, last + 1, add, init)
    total = sums.total
    if rule.sinks is not None:
        total += jnp.exp(_fold_sinks(rule.sinks, q.shape, kv_heads) - sums.top)
    out = sums.acc / total[..., None]
    if rule.mods.may_hide_all:
        out = jnp.where(sums.top[..., None] > LOWEST, out, 0.0)
    return _unfold(out, q.shape).astype(q.dtype)


def _fold_sinks(sinks: Array, shape: tuple[int, ...], kv_heads: int) -> Array:
    """The sink of each row [lanes kv_heads rows] of queries of some shape, when folded."""
    spread = jnp.broadcast_to(sinks.astype(jnp.float32)[:, None], (*shape[:3], 1))
    folded, _ = _fold(spread, jnp.zeros(shape[:2], jnp.int32), kv_heads)
    return folded[..., 0]


def _fold(q: Array, query_pos: Array, kv_heads: int) -> tuple[Array, Array]:
    """Make the queries and heads that share keys the rows of one matrix, with their positions.

    Rows are filled up to a multiple of 4, which XLA's CPU products need to be fast.
    """
    lanes, tile_q, q_heads, head_dim = q.shape
    num_rows = tile_q * q_heads // kv_heads
    folded = q.reshape(lanes, tile_q, kv_heads, -1, head_dim).swapaxes(1, 2)
    folded = folded.reshape(lanes, kv_heads, num_rows, head_dim)
    row_pos = jnp.repeat(query_pos, q_heads // kv_heads, axis=1)
    fill = (0, -num_rows % 4)
    folded = jnp.pad(folded, ((0, 0), (0, 0), fill, (0, 0)))
    return folded, jnp.pad(row_pos, ((0, 0), fill), constant_values=-1)


def _unfold(out: Array, shape: tuple[int, ...]) -> Array:
    """Undo `_fold`."""
    lanes, tile_q, q_heads, head_dim = shape
    kv_heads = out.shape[1]
    out = out[:, :, : tile_q * q_heads // kv_heads]
    return out.reshape(lanes, kv_heads, tile_q, -1, head_dim).swapaxes(1, 2).reshape(shape)


def _write(pool: Array, values: Array, slots: Array) -> Array:
    values = values.astype(FLOATS.get(pool.dtype, pool.dtype))
    if pool.dtype in FLOATS:
        values = jax.lax.bitcast_convert_type(values, pool.dtype)
    flat = pool.reshape(-1, *pool.shape[2:])
    return flat.at[slots].set(values, mode="promise_in_bounds").reshape(pool.shape)
