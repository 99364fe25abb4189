"""Paged attention over whole contexts at once, in plain jnp: the definition, and its weights."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.pool_view import (
    LOWEST,
    NO_MODS,
    Mods,
    Pool,
    Rule,
    Scales,
    Sinks,
    View,
    capped,
    dot,
    last_seen,
    modded,
    owner,
    reach_of,
    read,
    sees,
    slots_of,
)


def paged_attention_dense(
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
    """Attend over each token's whole context at once: the definition, in tokens * context memory.

    Args:
        block_tables: block i of a row holds positions [i * block_size, (i + 1) * block_size).
        kv_lens: tokens of each sequence in the pool, the queries among them.
        window: a query sees this many tokens back, itself included; None sees all.
        softcap: scores become tanh(score / softcap) * softcap.
        sinks: what each query head's weights are divided by gets exp(sink) more, as if one more
            position of value 0 had that score; neither scaled nor capped. -inf is none.
        k_scales: what each stored key is to be multiplied by; v_scales likewise. None is 1.
        mods: a user's functions.
    Returns:
        zeros for padding tokens, which no sequence owns, and for queries that see nothing.
    """
    view = View(k_pool, v_pool, block_tables, query_starts, kv_lens, k_scales, v_scales)
    seq, query_pos = owner(view, q.shape[0])
    rule = Rule(scale, window, softcap, sinks, mods)
    weights = attention_weights(q, view, rule, seq, query_pos)
    v = _context(view.v_pool, view.v_scales, _slots(view, rule, seq, query_pos))
    grouped = weights.reshape(q.shape[0], v.shape[1], -1, v.shape[2])
    out = dot("tkgc,tkcd->tkgd", grouped, v).reshape(q.shape)
    return jnp.where(query_pos[:, None, None] >= 0, out, 0.0).astype(q.dtype)


def attention_weights(
    q: Float[Array, "rows q_heads head_dim"],
    view: View,
    rule: Rule,
    seq: Int[Array, " rows"],
    query_pos: Int[Array, " rows"],
) -> Float[Array, "rows q_heads context"]:
    """Return what each query gives to each position of its sequence: 0 to what it does not see.

    Args:
        seq: the row of `view.block_tables` a query belongs to.
        query_pos: its position there; of -1, padding, the weights have no meaning.
    """
    k = _context(view.k_pool, view.k_scales, _slots(view, rule, seq, query_pos))
    grouped = q.reshape(q.shape[0], k.shape[1], -1, q.shape[2])  # [rows kv_heads group head_dim]
    scores = dot("tkgd,tkcd->tkgc", grouped.astype(jnp.float32), k)
    scores = capped(scores * jnp.float32(rule.scale), rule.softcap)
    context_pos = jnp.arange(k.shape[2], dtype=jnp.int32)
    last = last_seen(query_pos, rule.mods)
    seen = sees(last[:, None], context_pos[None, :], rule.window)[:, None, None, :]
    heads = jnp.arange(q.shape[1], dtype=jnp.int32).reshape(1, k.shape[1], -1, 1)
    places = (query_pos[:, None, None, None], context_pos[None, None, None, :], heads)
    scores = modded(scores, seen, places, rule.mods)
    weights = _softmax(scores, rule.sinks)
    if rule.mods.may_hide_all:
        weights = jnp.where(jnp.max(scores, axis=-1, keepdims=True) > LOWEST, weights, 0.0)
    return weights.reshape(*q.shape[:2], -1)


def _slots(view: View, rule: Rule, seq: Array, query_pos: Array) -> Array:
    """Where each query's whole context lies, [rows context]."""
    num_positions = view.block_tables.shape[1] * view.k_pool.shape[1]
    context_pos = jnp.arange(num_positions, dtype=jnp.int32)
    last = last_seen(query_pos, rule.mods)
    return slots_of(view, seq, context_pos, reach_of(last[:, None], rule.window))


def _context(pool: Array, scales: Array | None, slots: Array) -> Array:
    """Read keys or values as float32, [rows kv_heads context head_dim]."""
    values = read(pool, slots).astype(jnp.float32)
    return values if scales is None else values * read(scales[..., None], slots)


def _softmax(scores: Array, sinks: Array | None) -> Array:
    """Weights of scores [tokens kv_heads group context]; a sink a head takes a share."""
    if sinks is None:
        return jax.nn.softmax(scores, axis=-1)
    sink = sinks.astype(jnp.float32).reshape(1, *scores.shape[1:3], 1)
    sink = jnp.broadcast_to(sink, (*scores.shape[:3], 1))
    return jax.nn.softmax(jnp.concatenate([scores, sink], axis=-1), axis=-1)[..., :-1]
