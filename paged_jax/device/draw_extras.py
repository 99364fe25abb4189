"""What a draw may have beside vLLM's own order of operations: masks, XTC, a function of the user's.

Pure functions of logits or weights and what each row asks for.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from paged_jax.device.sampling_rows import SamplingRows

LogitsProcessor = Callable[[Array, SamplingRows], Array]


@dataclass(frozen=True)
class DrawExtras:
    """What is compiled into every draw program of an engine.

    Attributes:
        logprobs_mode: what is told as log-probabilities: "raw_logprobs" or "raw_logits" before
            anything is changed, "processed_logprobs" or "processed_logits" as tokens are drawn.
        processor: changes the logits, [rows vocab], before a token is chosen. It must treat each
            row alone; `SamplingRows.history` has every row's ids then.
    """

    logprobs_mode: str = "raw_logprobs"
    processor: LogitsProcessor | None = None

    @property
    def is_processed(self) -> bool:
        """Whether log-probabilities are those of the draw."""
        return self.logprobs_mode.startswith("processed")

    @property
    def is_normalised(self) -> bool:
        """Whether they are log-probabilities at all, and not logits."""
        return self.logprobs_mode.endswith("logprobs")


NO_EXTRAS = DrawExtras()


def mask_logits(logits: Float[Array, "rows vocab"], rows: SamplingRows) -> Array:
    """Forbid the ids whose bit is not set in a masked row."""
    num_rows, vocab = logits.shape
    bit = jnp.arange(32, dtype=jnp.uint32)[None, None, :]
    is_allowed = (rows.allowed[:, :, None] >> bit & jnp.uint32(1)) == 1
    is_allowed = is_allowed.reshape(num_rows, rows.allowed.shape[1] * 32)[:, :vocab]
    is_allowed = jnp.pad(is_allowed, ((0, 0), (0, vocab - is_allowed.shape[1])))
    return jnp.where(is_allowed | ~rows.is_masked[:, None], logits, -jnp.inf)


def exclude_top_choices(weights: Float[Array, "rows vocab"], rows: SamplingRows) -> Array:
    """Drop all but the least likely of the ids that reach the threshold, where chance has it so.

    Thresholds are shares of what the filters before have left. Source: p-e-w 2024, "Exclude Top
    Choices (XTC)", text-generation-webui pull request 6335.
    """
    total = jnp.sum(weights, axis=-1, keepdims=True)
    is_top = weights >= rows.xtc_threshold[:, None] * total
    least = jnp.min(jnp.where(is_top, weights, jnp.inf), axis=-1, keepdims=True)
    is_struck = _chance(rows) < rows.xtc_probability
    return jnp.where(is_top & (weights > least) & is_struck[:, None], 0.0, weights)


def with_xtc(weights: Float[Array, "rows vocab"], rows: SamplingRows) -> Array:
    """Apply XTC if any row asks for it."""
    is_asked = jnp.any(rows.xtc_probability > 0.0)
    return lax.cond(is_asked, lambda: exclude_top_choices(weights, rows), lambda: weights)


def _chance(rows: SamplingRows) -> Array:
    """A number in [0, 1) a row, apart from those that the draw itself takes."""

    def draw(key: Array, position: Array) -> Array:
        key = jax.random.wrap_key_data(key, impl="threefry2x32")
        key = jax.random.fold_in(jax.random.fold_in(key, position), 1)
        return jax.random.uniform(key, (), jnp.float32)

    return jax.vmap(draw)(rows.keys, rows.positions)
