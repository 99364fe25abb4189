"""The forward pass with taps: the same layers, read and changed at what the step's taps name.

It is another program than `forward`; a step without taps does not run it.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from paged_jax.config import ModelConfig
from paged_jax.device.kv_pool import KVPool, LayerKV
from paged_jax.device.step_batch import StepBatch
from paged_jax.device.taps import (
    NUM_WEIGHTS,
    TapBatch,
    TapOutput,
    capture_weights,
    edit_stream,
    zero_heads,
)
from paged_jax.models.layers import rms_norm
from paged_jax.models.packed import look_up
from paged_jax.models.params import LayerParams, ModelParams
from paged_jax.models.transformer import (
    StepContext,
    attend,
    close_layer,
    mods_of,
    open_layer,
    step_context,
)
from paged_jax.pytree import pytree
from pallas_kernels.dense import attention_weights
from pallas_kernels.pool_view import NO_MODS, Rule, View


@pytree
class TapContext:
    """What one layer of a tapped step is given beside the stream.

    Attributes:
        layer: its number.
    """

    step: StepContext
    taps: TapBatch
    positions: Int[Array, " tokens"]
    layer: Int[Array, ""]


@pytree
class TappedStream:
    """What flows from layer to layer.

    Attributes:
        captured: [weights q_heads context], attention weights so far.
    """

    x: Float[Array, "tokens embed"]
    captured: Float[Array, "weights q_heads context"]


def tapped_forward(
    params: ModelParams, pool: KVPool, batch: StepBatch, config: ModelConfig
) -> tuple[Float[Array, "tokens embed"], KVPool, TapOutput]:
    """Do as `forward` with the taps of `batch`. Donates: pool."""
    taps = batch.taps
    assert taps is not None, "a step without taps"
    x = look_up(params.embed, jnp.asarray(batch.tokens), config.activation_dtype)
    context = step_context(batch, config)
    positions = jnp.asarray(batch.positions)
    shape = (NUM_WEIGHTS, config.num_q_heads, batch.block_tables.shape[1] * pool.k[0].shape[1])
    stream = TappedStream(x=x, captured=jnp.zeros(shape, jnp.float32))
    layers, read = pool.layers(), list[Array]()
    for index, weights in enumerate(params.layers):
        at = TapContext(step=context, taps=taps, positions=positions, layer=jnp.int32(index))
        kv, window = layers[index], config.window(index)
        before, stream, layers[index] = tapped_layer(stream, kv, weights, at, config, window)
        read.append(before)
    x = edit_stream(stream.x, taps, jnp.int32(config.num_layers), positions)
    output = TapOutput(residual=jnp.stack([*read, x]), weights=stream.captured)
    return rms_norm(x, params.final_norm, config.norm_eps), KVPool.of(layers), output


@partial(jax.jit, static_argnames=("config", "window"))
def tapped_layer(
    stream: TappedStream,
    kv: LayerKV,
    weights: LayerParams,
    context: TapContext,
    config: ModelConfig,
    window: int | None,
) -> tuple[Float[Array, "tokens embed"], TappedStream, LayerKV]:
    """Run one layer; return also the stream before it, with its changes."""
    step, taps, positions = context.step, context.taps, context.positions
    x = edit_stream(stream.x, taps, context.layer, positions)
    q, kv = open_layer(x, kv, weights, step, config)
    captured = capture_weights(
        stream.captured,
        taps,
        context.layer,
        partial(_weights_of, q=q, kv=kv, batch=step.batch, rule=_rule(config, window)),
    )
    out = attend(q, kv, step.batch, config, window)
    out = zero_heads(out, taps, context.layer, positions, config.head_dim)
    after = close_layer(x, out, weights, step, config)
    return x, TappedStream(x=after, captured=captured), kv


def _rule(config: ModelConfig, window: int | None) -> Rule:
    return Rule(config.head_dim**-0.5, window, None, None, mods_of(config) or NO_MODS)


def _weights_of(
    row: Int[Array, ""],
    q: Float[Array, "tokens q_heads head_dim"],
    kv: LayerKV,
    batch: StepBatch,
    rule: Rule,
) -> Float[Array, "q_heads context"]:
    """Return the attention weights of one packed token."""
    tables, starts, lens = map(jnp.asarray, (batch.block_tables, batch.query_starts, batch.kv_lens))
    view = View(kv.k, kv.v, tables, starts, lens, kv.k_scales, kv.v_scales)
    seq, position = (jnp.asarray(of)[row][None] for of in (batch.seq_of_token, batch.positions))
    return attention_weights(q[row][None], view, rule, seq, position)[0]
