"""How attention in plain jnp sees the paged pool: positions, slots, and what is read from them.

Slots no live token owns, and table entries past a sequence's context, may hold anything.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int8, UInt8, UInt16

Pool = (
    Float[Array, "blocks block_size kv_heads head_dim"]
    | Int8[Array, "blocks block_size kv_heads head_dim"]
    | UInt8[Array, "blocks block_size kv_heads head_dim"]
    | UInt16[Array, "blocks block_size kv_heads head_dim"]
)
New = (
    Float[Array, "tokens kv_heads head_dim"]
    | Int8[Array, "tokens kv_heads head_dim"]
    | UInt8[Array, "tokens kv_heads head_dim"]
)
Scales = Float[Array, "blocks block_size kv_heads"]
Sinks = Float[Array, " q_heads"]

FAR = 1 << 30
LOWEST = float(np.finfo(np.float32).min)
# Unsigned integers in a pool are the bits of floats.
FLOATS = {jnp.dtype(jnp.uint16): jnp.bfloat16, jnp.dtype(jnp.uint8): jnp.float8_e4m3fn}


class View(NamedTuple):
    """The pool as the sequences of one step see it."""

    k_pool: Array
    v_pool: Array
    block_tables: Array
    query_starts: Array
    kv_lens: Array
    k_scales: Array | None
    v_scales: Array | None


class Mods(NamedTuple):
    """What a user's functions make of attention: each takes arrays that broadcast together.

    Attributes:
        score_mod: from scaled, capped scores and q_pos, k_pos, head to scores.
        mask_mod: from q_pos, k_pos, head to whether the query may see the key, of those it may.
        bidirectional: the first so many positions of a sequence see each other, all of which must
            be in the pool when one of them is a query; the others see what is before them.
    """

    score_mod: Callable[[Array, Array, Array, Array], Array] | None = None
    mask_mod: Callable[[Array, Array, Array], Array] | None = None
    bidirectional: int = 0

    @property
    def may_hide_all(self) -> bool:
        """Whether a query may be left without any key."""
        return self.score_mod is not None or self.mask_mod is not None


NO_MODS = Mods()


class Rule(NamedTuple):
    """How scores are formed."""

    scale: float
    window: int | None
    softcap: float | None
    sinks: Array | None  # [q_heads]
    mods: Mods = NO_MODS


class Reach(NamedTuple):
    """The positions a lane's queries see, start to stop - 1; without queries FAR and 0."""

    start: Array  # [lanes]
    stop: Array  # [lanes]


def owner(view: View, num_tokens: int) -> tuple[Array, Array]:
    """Return the sequence and the position in it of each packed token; 0 and -1 for padding."""
    token = jnp.arange(num_tokens, dtype=jnp.int32)
    seq = count_le(view.query_starts[1:], token)
    is_real = seq < view.kv_lens.shape[0]
    seq = jnp.where(is_real, seq, 0)
    return seq, jnp.where(is_real, token - view.query_starts[seq + 1] + view.kv_lens[seq], -1)


def count_le(sorted_values: Array, x: Array) -> Array:
    """Count how many of the values are at most x: the index of the interval that x lies in."""
    return jnp.sum(sorted_values[None, :] <= x[:, None], axis=1, dtype=jnp.int32)


def reach_of(query_pos: Array, window: int | None) -> Reach:
    """Return what the queries [lanes rows] of each lane see; -1 is no query."""
    start = jnp.min(jnp.where(query_pos >= 0, query_pos, FAR), axis=1)
    seen_from = jnp.zeros_like(start) if window is None else jnp.maximum(start - window + 1, 0)
    return Reach(jnp.where(start == FAR, FAR, seen_from), jnp.max(query_pos, axis=1) + 1)


def sees(query_pos: Array, context_pos: Array, window: int | None) -> Array:
    """Tell whether the query at one position attends to another; shapes broadcast."""
    seen = context_pos <= query_pos
    return seen if window is None else seen & (context_pos > query_pos - window)


def last_seen(query_pos: Array, mods: Mods) -> Array:
    """Return the last position each query may see; -1 of padding."""
    if not mods.bidirectional:
        return query_pos
    return jnp.where(query_pos >= 0, jnp.maximum(query_pos, mods.bidirectional - 1), query_pos)


def modded(scores: Array, seen: Array, places: tuple[Array, Array, Array], mods: Mods) -> Array:
    """Apply a user's functions, and give LOWEST to what is not seen.

    Args:
        seen: what a query may see without a mask_mod; broadcasts to the scores.
        places: q_pos, k_pos and head of each score; they broadcast to the scores.
    """
    if mods.score_mod is not None:
        scores = jnp.maximum(mods.score_mod(scores, *places), LOWEST).astype(jnp.float32)
    if mods.mask_mod is not None:
        seen = seen & mods.mask_mod(*places)
    return jnp.where(seen, scores, LOWEST)


def slots_of(view: View, seq: Array, context_pos: Array, reach: Reach) -> Array:
    """Return slots [lanes context]; a position out of reach repeats one within: no garbage is read.

    A lane without queries reads slot 0, and its result is not used.
    """
    block_size = view.k_pool.shape[1]
    start, stop = reach.start[:, None], reach.stop[:, None]
    inside = jnp.maximum(jnp.minimum(jnp.maximum(context_pos[None, :], start), stop - 1), 0)
    block = view.block_tables.at[seq[:, None], inside // block_size].get(mode="promise_in_bounds")
    return jnp.where(stop > 0, block * block_size + inside % block_size, 0)


def read(pool: Array, slots: Array) -> Array:
    """Gather [lanes kv_heads context head_dim]."""
    blocks, block_size, kv_heads, head_dim = pool.shape
    flat = pool.reshape(blocks * block_size, kv_heads, head_dim)
    heads = jnp.arange(kv_heads, dtype=jnp.int32)[None, :, None]
    out = flat.at[slots[:, None, :], heads].get(mode="promise_in_bounds")
    is_bits = out.dtype in FLOATS
    return jax.lax.bitcast_convert_type(out, FLOATS[out.dtype]) if is_bits else out


def scaled(values: Array, scales: Array | None, slots: Array) -> Array:
    """Multiply [lanes kv_heads context rows] by the scale at each slot."""
    return values if scales is None else values * read(scales[..., None], slots)


def capped(scores: Array, softcap: float | None) -> Array:
    """Bend scores so that none is beyond the cap."""
    if softcap is None:
        return scores
    return jnp.tanh(scores / jnp.float32(softcap)) * jnp.float32(softcap)


def dot(axes: str, a: Array, b: Array) -> Array:
    """Multiply with float32 sums."""
    return jnp.einsum(axes, a, b, preferred_element_type=jnp.float32)
