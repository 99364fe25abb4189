"""The step: a pure function from (params, pool, batch) to sampled tokens and the new pool.

`engine_step` is the whole of it and what a notebook calls. Serving compiles its two halves apart,
`backbone` per token bucket and `draw` per row bucket, so that compiled variants add instead of
multiply (see `programs`).
"""

import jax
from jaxtyping import Array, Float, Int

from paged_jax.config import ModelConfig
from paged_jax.device.kv_pool import KVPool
from paged_jax.device.sampling import SampleOutput, SamplingRows, position_logprobs, sample
from paged_jax.device.step_batch import StepBatch
from paged_jax.models.params import ModelParams
from paged_jax.models.transformer import forward, logits
from paged_jax.pytree import pytree


@pytree
class BackboneOutput:
    """What the layers give.

    Attributes:
        hidden: [tokens embed], after the final norm; for prompt log-probabilities and taps.
        sampled: [rows embed], the rows of `hidden` to be sampled.
    """

    hidden: Float[Array, "tokens embed"]
    sampled: Float[Array, "rows embed"]


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
    out, pool = backbone(params, pool, step.batch, config)
    return draw(params, out.sampled, step.rows, config, max_logprobs=max_logprobs), pool


def backbone(
    params: ModelParams, pool: KVPool, batch: StepBatch, config: ModelConfig
) -> tuple[BackboneOutput, KVPool]:
    """Run the layers over the packed tokens of a step. Donate: pool."""
    hidden, pool = forward(params, pool, batch, config)
    return BackboneOutput(hidden=hidden, sampled=hidden[batch.sample_at]), pool


def draw(
    params: ModelParams,
    sampled: Float[Array, "max_rows embed"],
    rows: SamplingRows,
    config: ModelConfig,
    *,
    max_logprobs: int,
) -> SampleOutput:
    """Project the first `rows` hidden states to the vocabulary and draw one token from each."""
    num_rows = rows.positions.shape[0]
    with jax.named_scope("sample"):
        return sample(
            logits(params, sampled[:num_rows]),
            rows,
            max_logprobs=max_logprobs,
            vocab_limit=config.vocab_limit,
        )


def score(
    params: ModelParams,
    hidden: Float[Array, "rows embed"],
    targets: Int[Array, " rows"],
    *,
    max_logprobs: int,
) -> SampleOutput:
    """Return log-probability, rank and alternatives of a given token after each hidden state.

    Prompt log-probabilities come from here, a few rows at a time: never [tokens vocab].
    """
    return position_logprobs(logits(params, hidden), targets, max_logprobs=max_logprobs)
