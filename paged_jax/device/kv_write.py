"""Writing into the KV pool, and the one-byte numbers that some pools keep.

A key or value head becomes integers up to 127, or float8 (e4m3) up to 448, and the scale that gives
it back: largest magnitude / 127 or / 448. A head is its own range, so nothing is ever rescaled.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from paged_jax.device.attention import write_kv
from paged_jax.device.kv_pool import FP8, LayerKV
from pallas_kernels import reference

LARGEST = {"int8": 127.0, FP8: 448.0}
TINY = float(np.finfo(np.float32).tiny)


def write_layer(
    kv: LayerKV,
    k: Float[Array, "tokens kv_heads head_dim"],
    v: Float[Array, "tokens kv_heads head_dim"],
    slots: Int[Array, " tokens"],
) -> LayerKV:
    """Write each token's key and value to its slot, as the pool keeps them. Donates: kv."""
    if kv.k_scales is None or kv.v_scales is None:
        return LayerKV(*write_kv(kv.k, kv.v, k, v, slots))
    kind = "int8" if kv.k.dtype == jnp.int8 else FP8
    (k, k_scale), (v, v_scale) = quantise(k, kind), quantise(v, kind)
    scales = reference.write_scales(kv.k_scales, kv.v_scales, k_scale, v_scale, slots)
    return LayerKV(*write_kv(kv.k, kv.v, k, v, slots), *scales)


def quantise(
    x: Float[Array, "tokens kv_heads head_dim"], kind: str
) -> tuple[reference.New, Float[Array, "tokens kv_heads"]]:
    """Round each head to the nearest multiples of its scale, ties to even.

    Args:
        kind: a key of LARGEST.
    Returns:
        a scale of 0 for a head of zeros, or of magnitudes whose scale is below float32's normals.
    """
    wide = x.astype(jnp.float32)
    scale = jnp.max(jnp.abs(wide), axis=-1) / LARGEST[kind]
    scale = jnp.where(scale < TINY, 0.0, scale)
    shares = wide / jnp.where(scale == 0.0, 1.0, scale)[..., None]
    return (jnp.round(shares) if kind == "int8" else shares).astype(kind), scale
