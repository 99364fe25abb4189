"""What the Triton kernels for decode and prefill share: a softmax over context tiles, made online.

A tile is 64 positions of one sequence, whatever the block size: the block table is read as a
vector. Nothing outside the positions asked for is loaded, neither table entries nor slots.
Source: Milakov and Gimelshein 2018, arXiv:1805.02867; Dao 2023, arXiv:2307.08691, section 3.1.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import triton as plt
from jaxtyping import Array

LOG2_E = math.log2(math.e)
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Rule:
    """How scores are formed, and the part of the padded head that is real.

    Attributes:
        window: a query sees this many tokens back, itself included; None sees all.
        softcap: scores become tanh(score / softcap) * softcap.
    """

    scale: float
    window: int | None
    softcap: float | None
    head_dim: int
    tile_kv: int


class Context(NamedTuple):
    """The keys and values of one KV head of one sequence, as references.

    Attributes:
        scales: of keys and of values [blocks block_size kv_heads], for one-byte pools.
    """

    k_pool: jax.Ref  # [blocks block_size kv_heads head_dim]
    v_pool: jax.Ref
    block_tables: jax.Ref  # [seqs max_blocks]
    seq: Array
    kv_head: Array
    scales: tuple[jax.Ref, ...]


class ContextTile(NamedTuple):
    """Keys and values at tile_kv positions, zeros where they are not live."""

    k: Array  # [tile_kv head_dim]
    v: Array
    k_scale: Array | None  # [tile_kv]
    v_scale: Array | None


class Span(NamedTuple):
    """Positions start to stop - 1 of a sequence, scalars."""

    start: Array
    stop: Array


class Sums(NamedTuple):
    """An online softmax under way; exponents are of 2."""

    acc: Array  # [rows head_dim]
    top: Array  # [rows]
    total: Array  # [rows]


def attend(
    q: Array, row_pos: Array | None, context: Context, rule: Rule, live: Span, tiles: Span
) -> Sums:
    """Sum over some tiles of the positions `live`, inside a kernel.

    Args:
        tiles: which, counted from the first position of `live`.
        q: [rows head_dim], head_dim padded with zeros.
        row_pos: position of each row's query; None where every row sees all of `live`.
    """

    def add(tile: Array, sums: Sums) -> Sums:
        pos = live.start + tile * rule.tile_kv + jnp.arange(rule.tile_kv, dtype=jnp.int32)
        is_live = pos < live.stop
        context_tile = _load_tile(context, rule, pos, is_live, q)
        seen = _sees(row_pos, pos, is_live, rule.window)
        scores = jnp.where(seen, _scores(q, context_tile, rule), LOWEST)
        return _add_tile(sums, scores, context_tile)

    rows, head_dim = q.shape
    init = Sums(
        jnp.zeros((rows, head_dim), jnp.float32),
        jnp.full((rows,), LOWEST, jnp.float32),
        jnp.zeros((rows,), jnp.float32),
    )
    return jax.lax.fori_loop(tiles.start, tiles.stop, add, init)


def columns(q_dim: int, rule: Rule) -> tuple[Array, Array | bool]:
    """Return the columns [1 head_dim] of a padded head, and which are real."""
    cols = jnp.arange(q_dim, dtype=jnp.int32)[None, :]
    return cols, True if q_dim == rule.head_dim else cols < rule.head_dim


def first_seen(pos: Array, window: int | None) -> Array:
    """Return the first position that a query at `pos` sees."""
    return jnp.zeros_like(pos) if window is None else jnp.maximum(pos - (window - 1), 0)


def sink_weight(sink: Array, top: Array) -> Array:
    """Return what a sink adds to a sum of weights relative to 2**top; inf, if it hides all else."""
    return jnp.exp2(sink.astype(jnp.float32) * jnp.float32(LOG2_E) - top)


def _load_tile(context: Context, rule: Rule, pos: Array, is_live: Array, q: Array) -> ContextTile:
    block_size = jnp.uint32(context.k_pool.shape[1])  # unsigned: a shift or a product suffices
    index = (pos.astype(jnp.uint32) // block_size).astype(jnp.int32)
    offset = (pos.astype(jnp.uint32) % block_size).astype(jnp.int32)
    block = plt.load(context.block_tables.at[context.seq, index], mask=is_live, other=0)
    cols, is_real = columns(q.shape[1], rule)
    at = (block[:, None], offset[:, None], context.kv_head, cols)

    def load(pool: jax.Ref) -> Array:
        other = 0.0 if jnp.issubdtype(pool.dtype, jnp.floating) else 0
        tile = plt.load(pool.at[at], mask=is_live[:, None] & is_real, other=other)
        if tile.dtype == jnp.uint16:
            return jax.lax.bitcast_convert_type(tile, jnp.bfloat16)
        return tile.astype(q.dtype)

    def load_scale(scales: jax.Ref) -> Array:
        scale = plt.load(scales.at[block, offset, context.kv_head], mask=is_live, other=0.0)
        return scale.astype(jnp.float32)

    k_scale, v_scale = map(load_scale, context.scales) if context.scales else (None, None)
    return ContextTile(load(context.k_pool), load(context.v_pool), k_scale, v_scale)


def _sees(row_pos: Array | None, pos: Array, is_live: Array, window: int | None) -> Array:
    """Whether each row [rows 1] attends to each position [1 tile_kv]."""
    if row_pos is None:
        return is_live[None, :]
    behind = row_pos[:, None] - pos[None, :]
    seen = behind >= 0
    return seen if window is None else seen & (behind < window)


def _scores(q: Array, tile: ContextTile, rule: Rule) -> Array:
    """Scores in units of log2, so that exponents are of 2."""
    scores = _dot(q, tile.k.T)
    if tile.k_scale is not None:
        scores *= tile.k_scale[None, :]
    if rule.softcap is None:
        return scores * jnp.float32(rule.scale * LOG2_E)
    capped = jnp.tanh(scores * jnp.float32(rule.scale / rule.softcap))
    return capped * jnp.float32(rule.softcap * LOG2_E)


def _add_tile(sums: Sums, scores: Array, tile: ContextTile) -> Sums:
    """Add one tile. A row that sees nothing yet sums weights of 1; its first score wipes them."""
    top = jnp.maximum(sums.top, jnp.max(scores, axis=1))
    weights = jnp.exp2(scores - top[:, None])
    decay = jnp.exp2(sums.top - top)
    total = sums.total * decay + jnp.sum(weights, axis=1)
    if tile.v_scale is not None:
        weights *= tile.v_scale[None, :]
    acc = sums.acc * decay[:, None] + _dot(weights.astype(tile.v.dtype), tile.v)
    return Sums(acc, top, total)


def _dot(a: Array, b: Array) -> Array:
    """Multiply with float32 sums; float32 factors are not rounded to TF32."""
    exact = a.dtype == jnp.float32
    precision = jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT
    return jnp.dot(a, b, precision=precision, preferred_element_type=jnp.float32)
