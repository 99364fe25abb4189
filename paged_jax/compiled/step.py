"""The step: a pure function from (params, pool, batch) to sampled tokens and the new pool.

`engine_step` is the whole of it and what a notebook calls. Serving compiles its two halves apart,
`backbone` per token bucket and `draw` per row bucket, so that compiled variants add instead of
multiply (see `programs`).
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from paged_jax.config import ModelConfig
from paged_jax.device.draw_extras import NO_EXTRAS, DrawExtras
from paged_jax.device.kv_pool import KVPool
from paged_jax.device.logprobs import SampleOutput, no_logprobs
from paged_jax.device.sampling_rows import SamplingRows
from paged_jax.device.sharded_sampling import sample_divided, score_divided
from paged_jax.device.step_batch import StepBatch, one_query_each
from paged_jax.device.taps import TapOutput
from paged_jax.models.params import ModelParams
from paged_jax.models.tapped import tapped_forward
from paged_jax.models.transformer import forward, likeliest, logits
from paged_jax.pytree import pytree


@pytree
class BackboneOutput:
    """What the layers give.

    Attributes:
        hidden: [tokens embed], after the final norm; for prompt log-probabilities.
        sampled: [rows embed], the rows of `hidden` to be sampled.
        taps: what the layers were read of, if the batch has taps.
    """

    hidden: Float[Array, "tokens embed"]
    sampled: Float[Array, "rows embed"]
    taps: TapOutput | None = None


@pytree
class StepInput:
    """Everything the host decides for one step."""

    batch: StepBatch
    rows: SamplingRows


def engine_step(
    params: ModelParams,
    pool: KVPool,
    step: StepInput,
    config: ModelConfig,
    *,
    max_logprobs: int = 0,
) -> tuple[SampleOutput, KVPool]:
    """Compute the step's tokens, write their keys and values, draw one token per row.

    Donate: pool.
    """
    out, pool = backbone(params, pool, step.batch, jnp.zeros(1, jnp.int32), config)
    return draw(params, out.sampled, step.rows, config, max_logprobs=max_logprobs)[0], pool


def backbone(
    params: ModelParams,
    pool: KVPool,
    batch: StepBatch,
    drawn: Int[Array, " max_rows"],
    config: ModelConfig,
    *,
    is_batch_invariant: bool = False,
) -> tuple[BackboneOutput, KVPool]:
    """Run the layers over the packed tokens of a step. Donate: pool.

    Args:
        drawn: the tokens the step before drew, which may not have reached the host.
        is_batch_invariant: every token attends as a decode does, those of a prompt too.
    """
    fed = drawn[jnp.maximum(batch.drawn_by - 1, 0)]
    batch = replace(batch, tokens=jnp.where(batch.drawn_by > 0, fed, batch.tokens))
    batch = one_query_each(batch) if is_batch_invariant else batch
    taps = None
    if batch.taps is None:
        hidden, pool = forward(params, pool, batch, config)
    else:
        hidden, pool, taps = tapped_forward(params, pool, batch, config)
    return BackboneOutput(hidden=hidden, sampled=hidden[batch.sample_at], taps=taps), pool


def draw(
    params: ModelParams,
    sampled: Float[Array, "max_rows embed"],
    rows: SamplingRows,
    config: ModelConfig,
    *,
    max_logprobs: int,
    extras: DrawExtras = NO_EXTRAS,
) -> tuple[SampleOutput, Int[Array, " max_rows"]]:
    """Project the first `rows` hidden states to the vocabulary and draw one token from each.

    Returns:
        also the tokens alone, as the next step's backbone takes them.
    """
    num_rows = rows.positions.shape[0]
    num_drawn = jnp.count_nonzero(jnp.asarray(rows.positions)).astype(jnp.int32)
    hidden, limit = sampled[:num_rows], config.vocab_limit or config.vocab_size
    with jax.named_scope("sample"):
        ids = likeliest(params, hidden, num_rows=num_drawn, limit=limit) if rows.is_plain else None
        if ids is not None:
            out = no_logprobs(ids, max_logprobs)
        else:
            out = sample_divided(
                logits(params, hidden, num_rows=num_drawn),
                rows,
                vocab_size=config.vocab_size,
                max_logprobs=max_logprobs,
                vocab_limit=config.vocab_limit,
                extras=extras,
            )
    return out, jnp.pad(out.tokens, (0, sampled.shape[0] - num_rows))


def score(
    params: ModelParams,
    hidden: Float[Array, "rows embed"],
    targets: Int[Array, " rows"],
    config: ModelConfig,
    *,
    max_logprobs: int,
) -> SampleOutput:
    """Return log-probability, rank and alternatives of a given token after each hidden state.

    Prompt log-probabilities come from here, a few rows at a time: never [tokens vocab].
    """
    return score_divided(
        logits(params, hidden),
        targets,
        vocab_size=config.vocab_size,
        max_logprobs=max_logprobs,
        vocab_limit=config.vocab_limit,
    )
