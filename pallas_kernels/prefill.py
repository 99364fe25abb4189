"""Ragged paged prefill in Triton: each program takes a run of one sequence's queries and a KV head.

Sequences of any number of queries mix in one call, decode among them. The query heads that share a
KV head are rows beside those of the other tokens, so any group fills the 64 rows of a wgmma well.
Source: Dao 2023, arXiv:2307.08691; Agrawal et al. 2023, arXiv:2308.16369 (chunked prefill).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.online_softmax import (
    Context,
    Rule,
    Span,
    attend,
    columns,
    first_seen,
    sink_weight,
)
from pallas_kernels.tiles import Pool, Scales, Sinks, Tile, check_supported, padded, prefill_tile


class QueryTiles(NamedTuple):
    """Packed queries cut into tiles of one sequence each; empty tiles come last.

    Attributes:
        seq: whose queries these are.
        start: the first row of q.
        stop: one past the last row.
        shift: position in the sequence minus row of q.
    """

    seq: Int[Array, " tiles"]
    start: Int[Array, " tiles"]
    stop: Int[Array, " tiles"]
    shift: Int[Array, " tiles"]


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
    sinks: Sinks | None = None,
    k_scales: Scales | None = None,
    v_scales: Scales | None = None,
    is_taken: Bool[Array, " seqs"] | None = None,
    interpret: bool = False,
) -> Float[Array, "tokens q_heads head_dim"]:
    """Attend as `reference.paged_attention` does, for steps with many queries a sequence.

    Args:
        k_scales: what each key of an int8 or float8 pool is to be multiplied by; v_scales likewise.
        is_taken: sequences whose queries are computed; rows of others are not written at all.
        interpret: run on a CPU.
    Raises:
        NotImplementedError: naming the limit.
    """
    check_supported(q, k_pool, (k_scales, v_scales))
    tokens, q_heads, head_dim = q.shape
    kv_heads = k_pool.shape[2]
    tile = prefill_tile(head_dim, q.dtype, k_pool.dtype)
    tile_q = tile.rows // (q_heads // kv_heads)
    tiles = cut_queries(kv_lens, query_starts, tokens, tile_q, is_taken)
    rule = Rule(scale, window, softcap, head_dim, tile.kv)
    call = _prefill_call(q, kv_heads, tiles.seq.shape[0], tile, rule, interpret)
    scales = () if k_scales is None else (k_scales, v_scales)
    return call(*tiles, block_tables, q, k_pool, v_pool, scales, sinks)


def cut_queries(
    kv_lens: Int[Array, " seqs"],
    query_starts: Int[Array, " seqs+1"],
    num_tokens: int,
    tile_q: int,
    is_taken: Bool[Array, " seqs"] | None = None,
) -> QueryTiles:
    """Cut the queries of the sequences taken, by default all, into tiles of at most `tile_q`.

    Padding tokens are the queries of one more sequence, which has no context: the kernel gives
    them zeros.
    """
    starts = jnp.concatenate([query_starts, jnp.full((1,), num_tokens, query_starts.dtype)])
    lens = jnp.concatenate([kv_lens, jnp.zeros((1,), kv_lens.dtype)])
    counts = (starts[1:] - starts[:-1] + tile_q - 1) // tile_q
    if is_taken is not None:
        counts = jnp.where(jnp.append(is_taken, True), counts, 0)
    ends = jnp.cumsum(counts)
    num_seqs = lens.shape[0]
    most = (num_tokens + (tile_q - 1) * min(num_seqs, num_tokens)) // tile_q
    tile = jnp.arange(most, dtype=jnp.int32)
    seq = jnp.sum(ends[None, :] <= tile[:, None], axis=1, dtype=jnp.int32)
    is_tile = seq < num_seqs
    seq = jnp.where(is_tile, seq, 0)
    start = starts[seq] + (tile - ends[seq] + counts[seq]) * tile_q
    stop = jnp.minimum(start + tile_q, starts[seq + 1])
    fields = (seq, start, stop, lens[seq] - starts[seq + 1])
    return QueryTiles(*(jnp.where(is_tile, field, 0) for field in fields))


def _prefill_call(q: Array, kv_heads: int, num_tiles: int, tile: Tile, rule: Rule, interpret: bool):
    """The kernel over a grid of [kv_heads tiles]."""
    return pl.pallas_call(
        functools.partial(_prefill_kernel, rule=rule, rows=tile.rows, group=q.shape[1] // kv_heads),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid=(kv_heads, num_tiles),
        compiler_params=plt.CompilerParams(num_warps=tile.num_warps, num_stages=tile.num_stages),
        interpret=interpret,
        name="paged_prefill",
    )


def _prefill_kernel(
    seq_ref,  # [tiles]
    start_ref,
    stop_ref,
    shift_ref,
    tables_ref,  # [seqs max_blocks]
    q_ref,  # [tokens q_heads head_dim]
    k_ref,  # [blocks block_size kv_heads head_dim]
    v_ref,
    scales,  # () or those of k and v [blocks block_size kv_heads]
    sinks_ref,  # None or [q_heads]
    out_ref,  # as q
    *,
    rule: Rule,
    rows: int,
    group: int,
):
    kv_head, tile = pl.program_id(0), pl.program_id(1)
    start, stop, shift = start_ref[tile], stop_ref[tile], shift_ref[tile]
    live = Span(first_seen(start + shift, rule.window), stop + shift)
    tiles = Span(jnp.int32(0), pl.cdiv(live.stop - live.start, rule.tile_kv))

    row = jnp.arange(rows, dtype=jnp.int32)
    token, head = start + row // group, kv_head * group + row % group
    cols, is_real = columns(padded(rule.head_dim), rule)
    mask = ((row // group < rows // group) & (token < stop))[:, None] & is_real
    at = (token[:, None], head[:, None], cols)
    q = plt.load(q_ref.at[at], mask=mask, other=jnp.zeros((), q_ref.dtype))
    context = Context(k_ref, v_ref, tables_ref, seq_ref[tile], kv_head, scales)
    sums = attend(q, token + shift, context, rule, live, tiles)
    total = sums.total
    if sinks_ref is not None:
        total += sink_weight(plt.load(sinks_ref.at[head]), sums.top)
    total = jnp.where(total > 0, total, 1.0)[:, None]
    plt.store(out_ref.at[at], (sums.acc / total).astype(out_ref.dtype), mask=mask)
