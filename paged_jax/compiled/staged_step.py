"""The backbone cut into stages: each runs some layers and hands the hidden states to the next."""

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Float

from paged_jax.compiled.step import BackboneOutput
from paged_jax.config import ModelConfig
from paged_jax.device.kv_pool import KVPool
from paged_jax.device.step_batch import StepBatch
from paged_jax.models.layers import rms_norm
from paged_jax.models.packed import look_up
from paged_jax.models.params import ModelParams
from paged_jax.models.transformer import run_layers


def stage_params(params: ModelParams, layers: range, config: ModelConfig) -> ModelParams:
    """Return what one stage's backbone takes of the model; the rest is None."""
    return replace(
        params,
        embed=params.embed if layers.start == 0 else None,
        layers=params.layers[layers.start : layers.stop],
        final_norm=params.final_norm if layers.stop == config.num_layers else None,
        unembed=None,
    )


def head_params(params: ModelParams) -> ModelParams:
    """Return what drawing takes of a model whose last stage has a head of its own."""
    assert params.unembed is not None, "the last stage has no head"
    return replace(params, embed=None, layers=(), final_norm=None)


def stage_backbone(
    params: ModelParams,
    pool: KVPool,
    batch: StepBatch,
    given: Float[Array, "tokens embed"] | None,
    config: ModelConfig,
    layers: range,
) -> tuple[BackboneOutput | Float[Array, "tokens embed"], KVPool]:
    """Run one stage's layers over the packed tokens of a step. Donate: pool.

    Args:
        params: those of `stage_params`.
        pool: its layers alone.
        given: the hidden states of the stage before; the first stage embeds the batch's tokens, all
            of which the host knows.
    """
    x = given
    if x is None:
        x = look_up(params.embed, jnp.asarray(batch.tokens), config.activation_dtype)
    x, pool = run_layers(x, params.layers, pool, batch, config, first=layers.start)
    if layers.stop < config.num_layers:
        return x, pool
    hidden = rms_norm(x, params.final_norm, config.norm_eps)
    return BackboneOutput(hidden=hidden, sampled=hidden[jnp.asarray(batch.sample_at)]), pool
