"""The taps of a step as arrays of fixed shapes, and what they do to a layer's arrays.

All is traced: which layer, token or head a tap is for are numbers, and so is how many there are.
Each request with taps has a seat in the step; a token says whose it is.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from paged_jax.host.taps import MAX_EDITS, MAX_TAPPED, MAX_WEIGHTS
from paged_jax.pytree import pytree

NUM_EDITS = MAX_TAPPED * MAX_EDITS
NUM_WEIGHTS = MAX_TAPPED * MAX_WEIGHTS
ADD, SET = 0, 1


@pytree
class Edits:
    """Changes of one kind, those of a layer together.

    Attributes:
        starts: changes starts[l] to starts[l + 1] - 1 are layer l's.
        seats: whose tokens each one changes.
        begins: the first position it is made at; ends: the one after the last.
        values: of the stream ADD or SET, of heads the head.
    """

    starts: Int[Array, " layers+2"]
    seats: Int[Array, " edits"]
    begins: Int[Array, " edits"]
    ends: Int[Array, " edits"]
    values: Int[Array, " edits"]


@pytree
class TapBatch:
    """What is read and changed in one step.

    Attributes:
        seats: of each packed token, one more than its request's seat; 0 where there are no taps.
        stream: changes of the residual stream.
        vectors: [edits embed], of each of these.
        heads: query heads that give zeros.
        weight_starts: weight_rows[weight_starts[l] : weight_starts[l + 1]] are layer l's.
        weight_rows: packed tokens whose attention weights are captured.
    """

    seats: Int[Array, " tokens"]
    stream: Edits
    vectors: Float[Array, "edits embed"]
    heads: Edits
    weight_starts: Int[Array, " layers+2"]
    weight_rows: Int[Array, " weights"]


@pytree
class TapOutput:
    """What the layers were read of.

    Attributes:
        residual: [layers+1 tokens embed], the stream before each layer and behind the last.
        weights: [weights q_heads context], in the order of `TapBatch.weight_rows`.
    """

    residual: Float[Array, "points tokens embed"]
    weights: Float[Array, "weights q_heads context"]


def empty_taps(num_tokens: int, num_layers: int, embed_dim: int) -> TapBatch:
    """Return taps that read and change nothing, in fresh memory."""

    def zeros(size: int) -> Any:  # numpy; the fields' types say what jit makes of it
        return np.zeros(size, np.int32)

    def edits() -> Edits:
        return Edits(
            starts=zeros(num_layers + 2),
            seats=zeros(NUM_EDITS),
            begins=zeros(NUM_EDITS),
            ends=zeros(NUM_EDITS),
            values=zeros(NUM_EDITS),
        )

    vectors: Any = np.zeros((NUM_EDITS, embed_dim), np.float32)
    return TapBatch(
        seats=zeros(num_tokens),
        stream=edits(),
        vectors=vectors,
        heads=edits(),
        weight_starts=zeros(num_layers + 2),
        weight_rows=zeros(NUM_WEIGHTS),
    )


def edit_stream(
    x: Float[Array, "tokens embed"],
    taps: TapBatch,
    layer: Int[Array, ""],
    positions: Int[Array, " tokens"],
) -> Float[Array, "tokens embed"]:
    """Make the changes of the residual stream before a layer, one after the other."""

    def change(index: Array | int, x: Array) -> Array:
        vector = taps.vectors[index].astype(x.dtype)[None, :]
        changed = jnp.where(taps.stream.values[index] == SET, vector, x + vector)
        return jnp.where(_hit(taps, taps.stream, index, positions)[:, None], changed, x)

    return _of_layer(taps.stream.starts, layer, change, x)


def zero_heads(
    out: Float[Array, "tokens inner"],
    taps: TapBatch,
    layer: Int[Array, ""],
    positions: Int[Array, " tokens"],
    head_dim: int,
) -> Float[Array, "tokens inner"]:
    """Let the heads named for a layer give zeros."""
    head_of = jnp.arange(out.shape[1], dtype=jnp.int32)[None, :] // head_dim

    def change(index: Array | int, out: Array) -> Array:
        hit = _hit(taps, taps.heads, index, positions)[:, None]
        return jnp.where(hit & (head_of == taps.heads.values[index]), jnp.zeros_like(out), out)

    return _of_layer(taps.heads.starts, layer, change, out)


def capture_weights(
    captured: Float[Array, "weights q_heads context"],
    taps: TapBatch,
    layer: Int[Array, ""],
    weights_of: Callable[[Array], Array],
) -> Float[Array, "weights q_heads context"]:
    """Write the attention weights of a layer's chosen tokens.

    Args:
        weights_of: from a packed token to its weights, [q_heads context].
    """

    def capture(index: Array | int, captured: Array) -> Array:
        row = weights_of(taps.weight_rows[index])
        return jax.lax.dynamic_update_index_in_dim(captured, row, index, 0)

    return _of_layer(taps.weight_starts, layer, capture, captured)


def _of_layer(
    starts: Array, layer: Array, body: Callable[[Array | int, Array], Array], init: Array
) -> Array:
    """Loop over the entries of one layer; none costs next to nothing."""
    return jax.lax.fori_loop(starts[layer], starts[layer + 1], body, init)


def _hit(
    taps: TapBatch, edits: Edits, index: Array | int, positions: Array
) -> Bool[Array, " tokens"]:
    """Which tokens a change is made at."""
    is_mine = taps.seats == edits.seats[index] + 1
    return is_mine & (positions >= edits.begins[index]) & (positions < edits.ends[index])
