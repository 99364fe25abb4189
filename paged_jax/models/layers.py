"""The parts of a layer as pure functions. Statistics of norms are float32 whatever the dtype."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from paged_jax.models.params import LayerParams
from paged_jax.models.quantised import QuantisedMatrix, multiply


def rms_norm(
    x: Float[Array, "*rows dim"], weight: Float[Array, " dim"], eps: float
) -> Float[Array, "*rows dim"]:
    """Scale each row to a root mean square of one, then by `weight`; the statistics are float32."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    normed = (wide * jax.lax.rsqrt(mean_square + jnp.float32(eps))).astype(x.dtype)
    return normed * jnp.broadcast_to(weight, x.shape)


def linear(
    x: Float[Array, "rows inner"],
    weight: Float[Array, "inner outer"] | QuantisedMatrix,
    bias: Float[Array, " outer"] | None = None,
) -> Float[Array, "rows outer"]:
    """Multiply by a matrix kept as [in, out] and add the bias, if any."""
    if isinstance(weight, QuantisedMatrix):
        out = multiply(x, weight)
    else:
        out = jnp.matmul(x, weight, precision=matmul_precision(x))
    return out if bias is None else out + bias[None, :]


def gated_mlp(x: Float[Array, "rows embed"], layer: LayerParams) -> Float[Array, "rows embed"]:
    """Return down(silu(gate(x)) * up(x))."""
    gate = jax.nn.silu(linear(x, layer.w_gate, layer.b_gate))
    return linear(gate * linear(x, layer.w_up, layer.b_up), layer.w_down, layer.b_down)


def matmul_precision(x: Array) -> jax.lax.Precision:
    """Return the precision of products with `x`: float32 is never rounded on the way."""
    return jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
