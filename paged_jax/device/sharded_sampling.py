"""Sampling where each device of a mesh has a part of the vocabulary's logits.

Where all rows are plain, each device finds its own likeliest id, and only those are exchanged.
Otherwise the devices trade: each gives up its part of most rows for the whole vocabulary of some
(all-to-all), and draws for those. So no device ever holds [rows vocab], and what a row is drawn
from is what one device alone would have had. Fewer rows than devices are gathered whole.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from paged_jax.device.draw_extras import NO_EXTRAS, DrawExtras
from paged_jax.device.logprobs import SampleOutput, no_logprobs, position_logprobs
from paged_jax.device.sampling import first_largest, sample
from paged_jax.device.sampling_rows import SamplingRows
from paged_jax.device.sharding import TENSOR, tensor_index, tensor_size

T = TypeVar("T")


def sample_divided(
    logits: Float[Array, "rows part"],
    rows: SamplingRows,
    *,
    vocab_size: int,
    max_logprobs: int,
    vocab_limit: int | None = None,
    extras: DrawExtras = NO_EXTRAS,
) -> SampleOutput:
    """Draw as `sample` does from logits that may be divided among devices.

    Args:
        logits: this device's ids; those from `vocab_size` on, over all devices, are padding.
    """
    whole = partial(sample, max_logprobs=max_logprobs, vocab_limit=vocab_limit, extras=extras)
    if tensor_size() == 1:
        return whole(logits, rows)
    if rows.is_plain:
        limit = min(vocab_size, vocab_size if vocab_limit is None else vocab_limit)
        return no_logprobs(_argmax(logits, limit), max_logprobs)
    return _by_rows(whole, logits, rows, vocab_size)


def score_divided(
    logits: Float[Array, "rows part"],
    targets: Int[Array, " rows"],
    *,
    vocab_size: int,
    max_logprobs: int,
    vocab_limit: int | None = None,
) -> SampleOutput:
    """Score as `position_logprobs` does, from logits that may be divided among devices."""
    whole = partial(position_logprobs, max_logprobs=max_logprobs, vocab_limit=vocab_limit)
    if tensor_size() == 1:
        return whole(logits, targets)
    return _by_rows(whole, logits, targets, vocab_size)


def _argmax(logits: Array, limit: int) -> Array:
    """The first id below `limit` of the largest logit: [rows] of (logit, id) from each device."""
    first = tensor_index() * logits.shape[1]
    is_real = first + jnp.arange(logits.shape[1], dtype=jnp.int32) < limit
    mine = first_largest(jnp.where(is_real[None, :], logits, -jnp.inf))
    top = jnp.take_along_axis(logits, mine[:, None], axis=-1)[:, 0]
    top = jnp.where(first + mine < limit, top, -jnp.inf)
    tops, ids = lax.all_gather((top, first + mine), TENSOR)  # [devices rows]
    best = jnp.argmax(tops, axis=0)[None, :]
    return jnp.take_along_axis(ids, best, axis=0)[0]


def _by_rows(
    whole: Callable[[Array, T], SampleOutput], logits: Array, rows: T, vocab_size: int
) -> SampleOutput:
    """Run `whole` on some rows on each device, all on each where they cannot be dealt out."""
    num_rows, devices = logits.shape[0], tensor_size()
    if num_rows % devices:
        full = lax.all_gather(logits, TENSOR, axis=1, tiled=True)
        return whole(full[:, :vocab_size], rows)
    full = lax.all_to_all(logits, TENSOR, split_axis=0, concat_axis=1, tiled=True)
    size = num_rows // devices

    def mine(leaf: Any) -> Array:
        return lax.dynamic_slice_in_dim(leaf, tensor_index() * size, size)

    out = whole(full[:, :vocab_size], jax.tree.map(mine, rows))
    return lax.all_gather(out, TENSOR, tiled=True)
