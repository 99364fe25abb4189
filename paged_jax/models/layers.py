"""The parts of a layer as pure functions. Statistics of norms are float32 whatever the dtype."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from paged_jax.device.cpu import norm
from paged_jax.device.derivative import with_derivative
from paged_jax.device.sharding import sum_over_tensor
from paged_jax.models.packed import (
    Matrix,
    PackedMatrix,
    gated_product,
    multiply_packed,
    products,
)
from paged_jax.models.params import LayerParams
from paged_jax.models.quantised import QuantisedMatrix, multiply


def rms_norm(
    x: Float[Array, "*rows dim"], weight: Float[Array, " dim"], eps: float
) -> Float[Array, "*rows dim"]:
    """Scale each row to a root mean square of one, then by `weight`; the statistics are float32."""
    if norm.norms(x):
        kernel, formula = partial(norm.rms_norm, eps=eps), partial(_rms_norm, eps=eps)
        return with_derivative(kernel, formula)(x, weight)
    return _rms_norm(x, weight, eps)


def _rms_norm(
    x: Float[Array, "*rows dim"], weight: Float[Array, " dim"], eps: float
) -> Float[Array, "*rows dim"]:
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    normed = (wide * jax.lax.rsqrt(mean_square + jnp.float32(eps))).astype(x.dtype)
    return normed * jnp.broadcast_to(weight, x.shape)


def add_rms_norm(
    x: Float[Array, "*rows dim"],
    added: Float[Array, "*rows dim"],
    weight: Float[Array, " dim"],
    eps: float,
) -> tuple[Float[Array, "*rows dim"], Float[Array, "*rows dim"]]:
    """Return x + added, and its norm."""
    if norm.norms(x):
        kernel, formula = partial(norm.add_rms_norm, eps=eps), partial(_add_rms_norm, eps=eps)
        return with_derivative(kernel, formula)(x, added, weight)
    return _add_rms_norm(x, added, weight, eps)


def _add_rms_norm(
    x: Float[Array, "*rows dim"],
    added: Float[Array, "*rows dim"],
    weight: Float[Array, " dim"],
    eps: float,
) -> tuple[Float[Array, "*rows dim"], Float[Array, "*rows dim"]]:
    total = x + added
    return total, _rms_norm(total, weight, eps)


def linear(
    x: Float[Array, "rows inner"],
    weight: Matrix,
    bias: Float[Array, " outer"] | None = None,
    *,
    num_rows: Int[Array, ""] | None = None,
) -> Float[Array, "rows outer"]:
    """Multiply by a matrix kept as [in, out] and add the bias, if any."""
    return linears(x, [weight], [bias], num_rows=num_rows)[0]


def linears(
    x: Float[Array, "rows inner"],
    weights: Sequence[Matrix],
    biases: Sequence[Float[Array, " _"] | None],
    *,
    num_rows: Int[Array, ""] | None = None,
) -> list[Float[Array, "rows _"]]:
    """Multiply the same rows by several matrices, in one call where they are packed.

    Args:
        num_rows: how many rows are not padding. The others are not computed where that saves time.
    """
    outs = products(x, weights, num_rows=num_rows) or [_product(x, weight) for weight in weights]
    return [
        out if bias is None else out + bias[None, :] for out, bias in zip(outs, biases, strict=True)
    ]


def _product(x: Float[Array, "rows inner"], weight: Matrix) -> Float[Array, "rows outer"]:
    if isinstance(weight, PackedMatrix):
        return multiply_packed(x, [weight])[0]
    if isinstance(weight, QuantisedMatrix):
        return multiply(x, weight)
    return jnp.matmul(x, weight.astype(x.dtype), precision=matmul_precision(x))


def linear_to_stream(
    x: Float[Array, "rows inner"],
    weight: Matrix,
    bias: Float[Array, " outer"] | None = None,
    *,
    num_rows: Int[Array, ""] | None = None,
) -> Float[Array, "rows outer"]:
    """Multiply as `linear` does; on a mesh each device has some of the inputs, and all are summed.

    The bias is added once, after the sum.
    """
    out = sum_over_tensor(linear(x, weight, num_rows=num_rows))
    return out if bias is None else out + bias[None, :]


def gated_mlp(
    x: Float[Array, "rows embed"],
    layer: LayerParams,
    *,
    num_rows: Int[Array, ""] | None = None,
) -> Float[Array, "rows embed"]:
    """Return down(silu(gate(x)) * up(x)); `num_rows` as for `linears`."""
    hidden = _gated(x, layer, num_rows)
    return linear_to_stream(hidden, layer.w_down, layer.b_down, num_rows=num_rows)


def _gated(
    x: Float[Array, "rows embed"], layer: LayerParams, num_rows: Int[Array, ""] | None
) -> Float[Array, "rows mlp"]:
    if layer.b_gate is None:
        fused = gated_product(x, layer.w_gate, layer.w_up, num_rows=num_rows)
        if fused is not None:
            return fused
    weights, biases = (layer.w_gate, layer.w_up), (layer.b_gate, layer.b_up)
    gate, up = linears(x, weights, biases, num_rows=num_rows)
    return jax.nn.silu(gate) * up


def matmul_precision(x: Array) -> jax.lax.Precision:
    """Return the precision of products with `x`: float32 is never rounded on the way."""
    return jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
