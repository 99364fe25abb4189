"""Draw one token from each row of logits, and give log-probabilities.

The order of operations is vLLM's. A row's token depends on its own logits, settings, seed and
position alone, never on the other rows. One program serves every mix: what no row asks for is
skipped at run time; another serves steps where all rows just take their likeliest id. For a GPU no
branch holds a loop that the host would have to drive, so that a step is one CUDA graph.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from paged_jax.device import platform
from paged_jax.device.cpu import kernels
from paged_jax.device.cpu.argmax import argmax
from paged_jax.device.draw_extras import NO_EXTRAS, DrawExtras, mask_logits, with_xtc
from paged_jax.device.logprobs import (
    SampleOutput,
    limited,
    no_logprobs,
    position_logprobs,
    top_k,
)
from paged_jax.device.sampling_rows import SamplingRows

ROW_TILE = 8
HISTORY_TILE = 256
NUM_CANDIDATES = 256
VOCAB_TILE = 128
LOWEST_KEY = np.uint32(0x007FFFFF)  # the sort key of -inf


def sample(
    logits: Float[Array, "rows vocab"],
    rows: SamplingRows,
    *,
    max_logprobs: int,
    vocab_limit: int | None = None,
    extras: DrawExtras = NO_EXTRAS,
) -> SampleOutput:
    """Draw one token a row.

    Args:
        max_logprobs: width of the alternatives; rows use the first `num_logprobs` of them.
        vocab_limit: ids from here on are never drawn or told (log-probabilities still count them).
    Returns:
        log-probabilities are zeros in a step where no row wants any. A row whose every logit is
        -inf gets id 0.
    """
    if rows.is_plain:
        return no_logprobs(first_largest(logits, limit=vocab_limit), max_logprobs)
    num_rows = logits.shape[0]
    limits = (max_logprobs, vocab_limit)
    step = lambda args: _sample_tile(args[0], args[1], limits, extras)  # noqa: E731
    if num_rows <= ROW_TILE or num_rows % ROW_TILE or platform.target() != "cpu":
        return step((logits, rows))
    split = lambda leaf: leaf.reshape(-1, ROW_TILE, *leaf.shape[1:])  # noqa: E731
    out = lax.map(step, jax.tree.map(split, (logits, rows)))
    return jax.tree.map(lambda leaf: leaf.reshape(num_rows, *leaf.shape[2:]), out)


def _sample_tile(
    logits: Array, rows: SamplingRows, limits: tuple[int, int | None], extras: DrawExtras
) -> SampleOutput:
    max_logprobs, vocab_limit = limits
    changed = _change(limited(logits, vocab_limit), rows)
    if extras.processor is not None:
        changed = extras.processor(changed, rows)
    tokens = _choose(changed, rows)
    empty = lambda: no_logprobs(tokens, max_logprobs)  # noqa: E731

    def wanted() -> SampleOutput:
        told = _drawn_from(changed, rows) if extras.is_processed else logits
        scored = partial(position_logprobs, vocab_limit=vocab_limit)
        return scored(told, tokens, max_logprobs, is_normalised=extras.is_normalised)

    return lax.cond(jnp.any(rows.num_logprobs >= 0), wanted, empty)


def _change(logits: Array, rows: SamplingRows) -> Array:
    """Add the biases, then the penalties; then forbid what the masks leave out."""
    change = lambda: _penalise(_add_bias(logits, rows), rows)  # noqa: E731
    is_changed = jnp.any(rows.has_penalties) | jnp.any(rows.bias_values != 0.0)
    logits = lax.cond(is_changed, change, lambda: logits)
    return lax.cond(jnp.any(rows.is_masked), lambda: mask_logits(logits, rows), lambda: logits)


def _choose(logits: Array, rows: SamplingRows) -> Array:
    """Take the likeliest id of greedy rows, draw the others'."""
    greedy = lambda: first_largest(logits)  # noqa: E731
    draw = lambda: jnp.where(rows.is_greedy, first_largest(logits), _draw(logits, rows))  # noqa: E731
    return lax.cond(jnp.all(rows.is_greedy), greedy, draw)


def first_largest(
    logits: Float[Array, "rows vocab"], *, limit: int | None = None
) -> Int[Array, " rows"]:
    """Return the first id, below `limit` if there is one, of the largest logit.

    In two stages, as XLA's CPU argmax is not vectorised.
    """
    if kernels.are_usable():
        return argmax(logits, limit=limit)
    tiles = _tiled(limited(logits, limit), -jnp.inf)
    tile = jnp.argmax(jnp.max(tiles, axis=-1), axis=-1).astype(jnp.int32)
    return tile * VOCAB_TILE + jnp.argmax(_pick(tiles, tile), axis=-1).astype(jnp.int32)


def _tiled(values: Array, padding: float) -> Array:
    """The vocabulary in tiles: [rows tiles VOCAB_TILE]."""
    num_rows, vocab = values.shape
    short = -vocab % VOCAB_TILE
    padded = jnp.pad(values, ((0, 0), (0, short)), constant_values=padding)
    return padded.reshape(num_rows, -1, VOCAB_TILE)


def _pick(tiles: Array, tile: Array) -> Array:
    """One tile a row."""
    return jnp.take_along_axis(tiles, tile[:, None, None], axis=1)[:, 0]


def _add_bias(logits: Array, rows: SamplingRows) -> Array:
    row = jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None]
    return logits.at[row, rows.bias_ids].add(rows.bias_values, mode="drop")


def _penalise(logits: Array, rows: SamplingRows) -> Array:
    """Repetition counts prompt and output, frequency and presence the output alone."""
    seen, in_output = _count_history(rows, logits.shape[-1])
    repetition = rows.repetition[:, None]
    repeated = jnp.where(logits > 0.0, logits / repetition, logits * repetition)
    logits = jnp.where(seen > 0, repeated, logits)
    logits -= rows.frequency[:, None] * in_output.astype(jnp.float32)
    return logits - rows.presence[:, None] * (in_output > 0).astype(jnp.float32)


def _count_history(rows: SamplingRows, vocab: int) -> tuple[Array, Array]:
    """How often each id occurs in prompt and output, and in the output: [rows vocab] each."""
    num_rows, context = rows.history.shape
    row = jnp.arange(num_rows, dtype=jnp.int32)[:, None]
    tile = min(HISTORY_TILE, context) if platform.target() == "cpu" else context

    def add(index: Array, counts: tuple[Array, Array]) -> tuple[Array, Array]:
        # The last tile is moved back to fit; what it shares with the one before counts once.
        start = jnp.minimum(index * tile, context - tile)
        at = start + jnp.arange(tile, dtype=jnp.int32)[None, :]
        ids = lax.dynamic_slice_in_dim(rows.history, start, tile, axis=1)
        is_valid = (at >= index * tile) & (at < rows.history_lens[:, None])
        is_output = is_valid & (at >= rows.prompt_lens[:, None])
        seen, in_output = counts
        seen = seen.at[row, ids].add(is_valid.astype(jnp.int32), mode="promise_in_bounds")
        put = is_output.astype(jnp.int32)
        return seen, in_output.at[row, ids].add(put, mode="promise_in_bounds")

    zeros = jnp.zeros((num_rows, vocab), jnp.int32)
    if tile == context:
        return add(jnp.int32(0), (zeros, zeros))
    num_tiles = (jnp.max(rows.history_lens) + tile - 1) // tile
    return lax.fori_loop(0, num_tiles, add, (zeros, zeros))


def _draw(logits: Array, rows: SamplingRows) -> Array:
    """Draw from the tempered and filtered distribution."""
    weights = _weights(logits, jnp.max(logits, axis=-1), rows)
    uniform = _uniform(rows)
    has_filter = (rows.top_k > 0) | (rows.top_p < 1.0) | (rows.min_p > 0.0)
    return lax.cond(
        jnp.any(has_filter & ~rows.is_greedy),
        lambda: _draw_weighted(with_xtc(_filter(logits, weights, rows), rows), uniform),
        lambda: _draw_weighted(with_xtc(weights, rows), uniform),
    )


def _drawn_from(logits: Array, rows: SamplingRows) -> Array:
    """The logits that tokens are drawn from: tempered, and without what the filters drop."""
    weights = _weights(logits, jnp.max(logits, axis=-1), rows)
    left = with_xtc(_filter(logits, weights, rows), rows)
    tempered = jnp.where(left > 0.0, logits / rows.temperature[:, None], -jnp.inf)
    return jnp.where(rows.is_greedy[:, None], logits, tempered)


def _weights(logits: Array, top: Array, rows: SamplingRows) -> Array:
    """Unnormalised probabilities at the row's temperature; the likeliest has 1.

    The largest logit is subtracted before the division, which so can only underflow.
    """
    top = jnp.where(top == -jnp.inf, 0.0, top)[:, None]
    return jnp.exp((logits - top) / jnp.where(rows.is_greedy, 1.0, rows.temperature)[:, None])


def _filter(logits: Array, weights: Array, rows: SamplingRows) -> Array:
    """Zero the weights that min_p, then top_k, then top_p drop; ties at a border all stay.

    Each filter keeps the logits from some border up. Borders are found among the likeliest
    candidates, or else by a search over all values: exact either way, and nothing is sorted.
    """
    vocab = logits.shape[-1]
    candidates = top_k(logits, min(NUM_CANDIDATES, vocab))[0]  # [rows candidates], falling
    # Without the barrier XLA narrows the slice for some users and then sorts the whole vocabulary.
    candidates = lax.optimization_barrier(candidates)
    size = jnp.sum(weights >= rows.min_p[:, None], axis=-1, dtype=jnp.int32)
    size = jnp.minimum(size, jnp.where(rows.top_k > 0, rows.top_k, vocab))
    wanted = jnp.where(size < vocab, size, 0).astype(jnp.float32)
    border = _border(logits, None, candidates, jnp.ones_like(candidates), wanted)

    total = jnp.sum(jnp.where(logits >= border[:, None], weights, 0.0), axis=-1)
    mass = _weights(candidates, candidates[:, 0], rows)
    mass = jnp.where(candidates >= border[:, None], mass, 0.0)
    at_least_one = jnp.maximum(rows.top_p * total, jnp.finfo(jnp.float32).tiny)
    wanted = jnp.where(rows.top_p < 1.0, at_least_one, 0.0)
    border = jnp.maximum(border, _border(logits, weights, candidates, mass, wanted))
    return jnp.where(logits >= border[:, None], weights, 0.0)


def _border(
    values: Array, mass: Array | None, candidates: Array, candidate_mass: Array, wanted: Array
) -> Array:
    """The largest value such that those from it up have the mass wanted; -inf where that is 0.

    Args:
        mass: of each value; None gives each 1.
    """
    num_candidates = candidates.shape[-1]
    sums = jnp.cumsum(candidate_mass, axis=-1)
    index = jnp.sum(sums < wanted[:, None], axis=-1, dtype=jnp.int32)
    at = jnp.minimum(index, num_candidates - 1)[:, None]
    near = jnp.take_along_axis(candidates, at, axis=-1)[:, 0]
    is_near = (index < num_candidates) | (wanted == 0.0)
    search = lambda: jnp.where(is_near, near, _search(values, mass, wanted))  # noqa: E731
    border = lax.cond(jnp.all(is_near), lambda: near, search)
    return jnp.where(wanted == 0.0, -jnp.inf, border)


def _search(values: Array, mass: Array | None, wanted: Array) -> Array:
    """The same by fixing the bits of the border's sort key from the highest down: 32 passes."""

    def fix(index: Array, low: Array) -> Array:
        tried = low | (jnp.uint32(1 << 31) >> index.astype(jnp.uint32))
        is_in = values >= _from_sort_key(tried)[:, None]
        reached = jnp.sum(jnp.where(is_in, 1.0 if mass is None else mass, 0.0), axis=-1)
        return jnp.where(reached >= wanted, tried, low)

    is_graph = platform.target() != "cpu"
    low = lax.fori_loop(0, 32, fix, jnp.zeros(values.shape[0], jnp.uint32), unroll=is_graph)
    return _from_sort_key(jnp.maximum(low, LOWEST_KEY))


def _from_sort_key(keys: Array) -> Array:
    """Floats whose order is that of the unsigned keys."""
    bits = jnp.where(keys >> 31 == 1, keys ^ jnp.uint32(1 << 31), ~keys)
    return lax.bitcast_convert_type(bits, jnp.float32)


def _uniform(rows: SamplingRows) -> Array:
    """Two numbers in [0, 1) a row, from its seed and position: [rows 2]."""

    def draw(key: Array, position: Array) -> Array:
        key = jax.random.wrap_key_data(key, impl="threefry2x32")
        return jax.random.uniform(jax.random.fold_in(key, position), (2,), jnp.float32)

    return jax.vmap(draw)(rows.keys, rows.positions)


def _draw_weighted(weights: Array, uniform: Array) -> Array:
    """Draw ids in proportion to weights: first a tile of the vocabulary, then an id of it.

    By inverse distribution: a Gumbel race needs a random number for each entry of the vocabulary
    (64 rows of 49152 on two CPU cores: 67 ms; this: 1.4 ms).
    """
    tiles = _tiled(weights, 0.0)
    tile = _invert(jnp.sum(tiles, axis=-1), uniform[:, 0])
    return tile * VOCAB_TILE + _invert(_pick(tiles, tile), uniform[:, 1])


def _invert(weights: Array, uniform: Array) -> Array:
    """The first index whose running sum exceeds that share of the total: never one of weight 0."""
    sums = jnp.cumsum(weights, axis=-1)
    index = jnp.sum(sums <= (uniform * sums[:, -1])[:, None], axis=-1, dtype=jnp.int32)
    return jnp.where(sums[:, -1] > 0.0, index, 0)
