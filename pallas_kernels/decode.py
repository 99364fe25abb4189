"""Paged decode in Triton: one program for each query token, KV head and part of the context.

Each part (split) leaves a sum that is not yet normalised, its weight and its maximum, in float32;
`combine` adds them up. Any number of queries a sequence is right, one is what it is made for.
Source: Dao et al. 2023, Flash-Decoding; Kwon et al. 2023, arXiv:2309.06180, section 4.1.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Float, Int

from pallas_kernels.online_softmax import (
    Context,
    Rule,
    Span,
    attend,
    columns,
    first_seen,
    sink_weight,
)
from pallas_kernels.tiles import (
    H200_SMS,
    Pool,
    Scales,
    Sinks,
    Tile,
    check_supported,
    choose_splits,
    decode_tile,
    padded,
)


class Partials(NamedTuple):
    """What each split of the context sums up to; exponents are of 2."""

    acc: Float[Array, "splits tokens q_heads head_dim"]
    top: Float[Array, "splits tokens q_heads"]
    total: Float[Array, "splits tokens q_heads"]


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
    k_scales: Scales | None = None,
    v_scales: Scales | None = None,
    num_splits: int | None = None,
    num_sms: int = H200_SMS,
    interpret: bool = False,
) -> Float[Array, "tokens q_heads head_dim"]:
    """Attend as `reference.paged_attention` does, for steps of about one query a sequence.

    Args:
        k_scales: what each key of an int8 or float8 pool is to be multiplied by; v_scales likewise.
        num_splits: parts each context is cut into; None chooses from the shapes.
        num_sms: streaming multiprocessors of the GPU, for that choice.
        interpret: run on a CPU.
    Raises:
        NotImplementedError: naming the limit.
    """
    check_supported(q, k_pool, (k_scales, v_scales))
    tokens, q_heads, head_dim = q.shape
    kv_heads = k_pool.shape[2]
    tile = decode_tile(q_heads // kv_heads, head_dim, q.dtype, k_pool.dtype)
    context = block_tables.shape[1] * k_pool.shape[1]
    splits = num_splits or choose_splits(tokens * kv_heads, context, tile.blocks_per_sm, num_sms)
    seq, kv_len = token_contexts(kv_lens, query_starts, tokens)
    rule = Rule(scale, window, softcap, head_dim, tile.kv)
    call = _decode_call(q, kv_heads, splits, tile, rule, interpret)
    scales = () if k_scales is None else (k_scales, v_scales)
    partials = call(seq, kv_len, block_tables, q, k_pool, v_pool, scales)
    return combine(Partials(*partials), sinks).astype(q.dtype)


def token_contexts(
    kv_lens: Int[Array, " seqs"], query_starts: Int[Array, " seqs+1"], num_tokens: int
) -> tuple[Int[Array, " tokens"], Int[Array, " tokens"]]:
    """Return each packed token's sequence and how many tokens it sees; 0 and 0 for padding."""
    token = jnp.arange(num_tokens, dtype=jnp.int32)
    seq = jnp.sum(query_starts[None, 1:] <= token[:, None], axis=1, dtype=jnp.int32)
    is_real = seq < kv_lens.shape[0]
    seq = jnp.where(is_real, seq, 0)
    behind = query_starts[seq + 1] - 1 - token
    return seq, jnp.where(is_real, kv_lens[seq] - behind, 0)


def combine(
    partials: Partials, sinks: Sinks | None = None
) -> Float[Array, "tokens q_heads head_dim"]:
    """Add up the splits of each context, in float32; zeros where there is no context."""
    top = jnp.max(partials.top, axis=0)
    weights = jnp.exp2(partials.top - top[None])
    total = jnp.sum(partials.total * weights, axis=0)
    if sinks is not None:
        total += sink_weight(sinks[None, :], top)
    acc = jnp.sum(partials.acc * weights[..., None], axis=0)
    return jnp.where(total[..., None] > 0, acc / jnp.where(total > 0, total, 1.0)[..., None], 0.0)


def _decode_call(
    q: Array,
    kv_heads: int,
    splits: int,
    tile: Tile,
    rule: Rule,
    interpret: bool,
):
    """The kernel over a grid of [kv_heads tokens splits]: heads, which lie side by side, first."""
    tokens, q_heads, head_dim = q.shape
    shape = (splits, tokens, q_heads)
    return pl.pallas_call(
        functools.partial(
            _decode_kernel, rule=rule, rows=tile.rows, group=q_heads // kv_heads, splits=splits
        ),
        out_shape=(
            jax.ShapeDtypeStruct((*shape, head_dim), jnp.float32),
            jax.ShapeDtypeStruct(shape, jnp.float32),
            jax.ShapeDtypeStruct(shape, jnp.float32),
        ),
        grid=(kv_heads, tokens, splits),
        compiler_params=plt.CompilerParams(num_warps=tile.num_warps, num_stages=tile.num_stages),
        interpret=interpret,
        name="paged_decode",
    )


def _decode_kernel(
    seq_ref,  # [tokens]
    kv_len_ref,  # [tokens]
    tables_ref,  # [seqs max_blocks]
    q_ref,  # [tokens q_heads head_dim]
    k_ref,  # [blocks block_size kv_heads head_dim]
    v_ref,
    scales,  # () or those of k and v [blocks block_size kv_heads]
    acc_ref,  # [splits tokens q_heads head_dim]
    top_ref,  # [splits tokens q_heads]
    total_ref,
    *,
    rule: Rule,
    rows: int,
    group: int,
    splits: int,
):
    kv_head, token, split = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    seq, stop = seq_ref[token], kv_len_ref[token]
    live = Span(first_seen(stop - 1, rule.window), stop)
    num_tiles = pl.cdiv(live.stop - live.start, rule.tile_kv)
    share = pl.cdiv(num_tiles, splits)
    tiles = Span(split * share, jnp.minimum((split + 1) * share, num_tiles))

    row = jnp.arange(rows, dtype=jnp.int32)
    is_row = row < group
    head = kv_head * group + row
    cols, is_real = columns(padded(rule.head_dim), rule)
    mask = is_row[:, None] & is_real
    q = plt.load(q_ref.at[token, head[:, None], cols], mask=mask, other=jnp.zeros((), q_ref.dtype))
    context = Context(k_ref, v_ref, tables_ref, seq, kv_head, scales)
    sums = attend(q, None, context, rule, live, tiles)
    plt.store(acc_ref.at[split, token, head[:, None], cols], sums.acc, mask=mask)
    plt.store(top_ref.at[split, token, head], sums.top, mask=is_row)
    plt.store(total_ref.at[split, token, head], sums.total, mask=is_row)
