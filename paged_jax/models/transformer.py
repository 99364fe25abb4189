"""The forward pass of every supported family over the packed tokens of one step.

Layers are unrolled: a scan would copy the pool and the weights at every step.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from paged_jax.config import ModelConfig
from paged_jax.device import platform
from paged_jax.device.attention import paged_attention
from paged_jax.device.kv_pool import KVPool, LayerKV
from paged_jax.device.step_batch import StepBatch
from paged_jax.models.layers import (
    add_rms_norm,
    gated_mlp,
    linear,
    linear_to_stream,
    linears,
    matmul_precision,
    rms_norm,
)
from paged_jax.models.packed import PackedMatrix, largest_output, look_up
from paged_jax.models.params import LayerParams, ModelParams
from paged_jax.models.rope import Angles, rope_angles, rotate_and_write
from paged_jax.pytree import pytree
from pallas_kernels.pool_view import Mods


@pytree
class StepContext:
    """What the layers of a step share.

    Attributes:
        num_tokens: how many of the batch's tokens are not padding.
    """

    batch: StepBatch
    angles: Angles
    num_tokens: Int[Array, ""]


def forward(
    params: ModelParams, pool: KVPool, batch: StepBatch, config: ModelConfig
) -> tuple[Float[Array, "tokens embed"], KVPool]:
    """Compute a step's tokens and write their keys and values. Donates: pool.

    Returns:
        the hidden state of each token after the final norm (of padding: finite, without meaning),
        and the new pool.
    """
    x = look_up(params.embed, jnp.asarray(batch.tokens), config.activation_dtype)
    x, pool = run_layers(x, params.layers, pool, batch, config)
    return rms_norm(x, params.final_norm, config.norm_eps), pool


def run_layers(
    x: Float[Array, "tokens embed"],
    weights: tuple[LayerParams, ...],
    pool: KVPool,
    batch: StepBatch,
    config: ModelConfig,
    *,
    first: int = 0,
) -> tuple[Float[Array, "tokens embed"], KVPool]:
    """Run consecutive layers of the model, the first of which is layer `first`. Donates: pool."""
    context, layers = step_context(batch, config), pool.layers()
    for index, each in enumerate(weights):
        window = config.window(first + index)
        x, layers[index] = layer(x, layers[index], each, context, config, window)
    return x, KVPool.of(layers)


def step_context(batch: StepBatch, config: ModelConfig) -> StepContext:
    """Return what the layers of a step share."""
    prompt_lens = jnp.asarray(batch.prompt_lens)[batch.seq_of_token]
    angles = rope_angles(jnp.asarray(batch.positions), prompt_lens, config)
    num_tokens = jnp.asarray(batch.query_starts)[-1]
    return StepContext(batch=batch, angles=angles, num_tokens=num_tokens)


@partial(jax.jit, static_argnames=("config", "window"))
def layer(
    x: Float[Array, "tokens embed"],
    kv: LayerKV,
    weights: LayerParams,
    context: StepContext,
    config: ModelConfig,
    window: int | None,
) -> tuple[Float[Array, "tokens embed"], LayerKV]:
    """Run one layer. Jitted on its own so that equal layers are traced and lowered once."""
    q, kv = open_layer(x, kv, weights, context, config)
    out = attend(q, kv, context.batch, config, window)
    return close_layer(x, out, weights, context, config), kv


def open_layer(
    x: Float[Array, "tokens embed"],
    kv: LayerKV,
    weights: LayerParams,
    context: StepContext,
    config: ModelConfig,
) -> tuple[Float[Array, "tokens q_heads head_dim"], LayerKV]:
    """Do what comes before attention: write keys and values, return the rotated queries."""
    h = rms_norm(x, weights.attn_norm, config.norm_eps)
    heads = _heads(h, weights, context, config)
    with jax.named_scope("write_kv"):
        return rotate_and_write(kv, heads, context.angles, context.batch.slots)


def close_layer(
    x: Float[Array, "tokens embed"],
    out: Float[Array, "tokens inner"],
    weights: LayerParams,
    context: StepContext,
    config: ModelConfig,
) -> Float[Array, "tokens embed"]:
    """Do what comes behind attention, and add both to the stream."""
    out = linear_to_stream(out, weights.w_o, weights.b_o, num_rows=context.num_tokens)
    x, h = add_rms_norm(x, out, weights.mlp_norm, config.norm_eps)
    with jax.named_scope("mlp"):
        return x + gated_mlp(h, weights, num_rows=context.num_tokens)


def logits(
    params: ModelParams,
    hidden: Float[Array, "rows embed"],
    *,
    num_rows: Int[Array, ""] | None = None,
) -> Float[Array, "rows vocab"]:
    """Project to the vocabulary in float32; on a mesh to this device's part of it.

    Args:
        num_rows: rows that are not padding; of others logits are finite, without meaning.
    """
    weight, axis = params.head, 1 if params.unembed is None else 0
    if isinstance(weight, PackedMatrix):
        return linear(hidden, weight, num_rows=num_rows)
    if platform.target() == "cpu":  # there a product cannot be wider than its factors
        hidden, weight = hidden.astype(jnp.float32), weight.astype(jnp.float32)
    return jax.lax.dot_general(
        hidden,
        weight,
        (((1,), (axis,)), ((), ())),
        precision=matmul_precision(hidden),
        preferred_element_type=jnp.float32,
    )


def likeliest(
    params: ModelParams,
    hidden: Float[Array, "rows embed"],
    *,
    num_rows: Int[Array, ""],
    limit: int,
) -> Int[Array, " rows"] | None:
    """Return the first id below `limit` of each row's largest logit; None: take it from `logits`.

    Args:
        num_rows: rows that are not padding; the others give 0.
    """
    return largest_output(hidden, params.head, num_rows=num_rows, limit=limit)


@jax.named_scope("qkv")
def _heads(
    h: Float[Array, "tokens embed"], layer: LayerParams, context: StepContext, config: ModelConfig
) -> tuple[
    Float[Array, "tokens q_heads head_dim"],
    Float[Array, "tokens kv_heads head_dim"],
    Float[Array, "tokens kv_heads head_dim"],
]:
    """Project to queries, keys and values; norm q and k where the family does."""
    split = lambda x: x.reshape(x.shape[0], -1, config.head_dim)  # noqa: E731
    matrices, biases = (layer.w_q, layer.w_k, layer.w_v), (layer.b_q, layer.b_k, layer.b_v)
    q, k, v = map(split, linears(h, matrices, biases, num_rows=context.num_tokens))
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = (
            rms_norm(q, layer.q_norm, config.norm_eps),
            rms_norm(k, layer.k_norm, config.norm_eps),
        )
    return q, k, v


def mods_of(config: ModelConfig) -> Mods | None:
    """Return the user's own attention as kernels take it."""
    mods = config.mods
    if mods is None:
        return None
    return Mods(mods.score_mod, mods.mask_mod, mods.bidirectional)  # type: ignore[arg-type]


@jax.named_scope("attention")
def attend(
    q: Float[Array, "tokens q_heads head_dim"],
    kv: LayerKV,
    batch: StepBatch,
    config: ModelConfig,
    window: int | None,
) -> Float[Array, "tokens q_heads*head_dim"]:
    """Attend through the block tables; heads are laid side by side again."""
    out = paged_attention(
        q,
        kv.k,
        kv.v,
        batch.block_tables,
        batch.query_starts,
        batch.kv_lens,
        scale=config.head_dim**-0.5,
        window=window,
        k_scales=kv.k_scales,
        v_scales=kv.v_scales,
        mods=mods_of(config),
    )
    return out.reshape(q.shape[0], -1)
