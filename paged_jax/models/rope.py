"""Rotary positions: float64 frequencies made on the host, float32 angles on the device.

The formulas are those of Hugging Face transformers (`modeling_rope_utils`). "dynamic" depends on
the length of the sequence: a token of the prompt is rotated for the prompt's length, a generated
one for its own, so that neither chunking nor batch mates nor preemption change a key once written.
Sources: Su et al. 2021, arXiv:2104.09864; Peng et al. 2023, arXiv:2309.00071 (yarn).
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int

from paged_jax.config import ModelConfig, RopeScaling
from paged_jax.device.cpu import attention as cpu
from paged_jax.device.cpu.attention import Angles, Heads
from paged_jax.device.derivative import with_derivative
from paged_jax.device.kv_pool import LayerKV, LayerPool
from paged_jax.device.kv_write import write_layer
from pallas_kernels import reference


def rope_angles(
    positions: Int[Array, " tokens"], prompt_lens: Int[Array, " tokens"], config: ModelConfig
) -> Angles:
    """Return cosine and sine of each token's angles, times the attention factor.

    Args:
        prompt_lens: length of the prompt each token belongs to ("dynamic" alone reads it).
    """
    frequencies = jnp.asarray(inverse_frequencies(config), jnp.float32)
    angles = positions.astype(jnp.float32)[:, None] * frequencies[None, :]
    if config.rope_scaling.kind == "dynamic":
        angles = angles * _dynamic_stretch(jnp.maximum(prompt_lens, positions + 1), config)
    factor = jnp.float32(attention_factor(config.rope_scaling))
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def rotate_and_write(
    kv: LayerKV, heads: Heads, angles: Angles, slots: Int[Array, " tokens"]
) -> tuple[Float[Array, "tokens q_heads head_dim"], LayerKV]:
    """Rotate queries and keys to their positions, write keys and values; in one call on a CPU.

    Args:
        heads: queries, keys, values.
    Returns:
        the rotated queries.
    """
    try:
        run = with_derivative(cpu.rotate_and_write, _rotate_and_write)
        q, k_pool, v_pool = run(heads, angles, (kv.k, kv.v), slots)
        return q, LayerKV(k_pool, v_pool)
    except NotImplementedError:
        q, k, v = heads
        return rotate(q, angles), write_layer(kv, rotate(k, angles), v, slots)


def _rotate_and_write(
    heads: Heads, angles: Angles, pools: tuple[LayerPool, LayerPool], slots: Int[Array, " tokens"]
) -> tuple[Float[Array, "tokens q_heads head_dim"], LayerPool, LayerPool]:
    q, k, v = heads
    k_pool, v_pool = reference.write_kv(*pools, rotate(k, angles), v, slots)
    return rotate(q, angles), k_pool, v_pool


def rotate(
    x: Float[Array, "tokens heads head_dim"], angles: Angles
) -> Float[Array, "tokens heads head_dim"]:
    """Rotate each head's halves against each other (Hugging Face's `rotate_half` layout)."""
    cos, sin = (part[:, None, :] for part in angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def inverse_frequencies(config: ModelConfig) -> Float64[np.ndarray, " half_dim"]:
    """Return radians per position, fastest first; for "dynamic" those of a short sequence."""
    scaling, dim = config.rope_scaling, config.head_dim
    plain = config.rope_theta ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
    scaled = {"linear": plain / scaling.factor}.get(scaling.kind, plain)
    if scaling.kind == "yarn":
        scaled = _yarn(plain, config)
    if scaling.kind == "llama3":
        scaled = _llama3(plain, scaling)
    return scaled if scaling.divisors is None else scaled / np.asarray(scaling.divisors, np.float64)


def attention_factor(scaling: RopeScaling) -> float:
    """Return what cosine and sine are multiplied with: 1 but for "yarn"."""
    if scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _mscale(scaling.factor, scaling.mscale) / _mscale(
            scaling.factor, scaling.mscale_all_dim
        )
    return _mscale(scaling.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _dynamic_stretch(
    lengths: Int[Array, " tokens"], config: ModelConfig
) -> Float[Array, "tokens half_dim"]:
    """What the frequencies are multiplied with at these lengths: 1 up to the original length."""
    factor, dim = config.rope_scaling.factor, config.head_dim
    original = config.rope_scaling.original_max_position or config.max_position
    longer = jnp.maximum(lengths, original).astype(jnp.float32) / jnp.float32(original)
    growth = jnp.log(factor * longer - (factor - 1))  # base grows by exp(growth * dim / (dim - 2))
    exponents = -np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim - 2)
    return jnp.exp(growth[:, None] * exponents[None, :])


def _yarn(
    plain: Float64[np.ndarray, " half_dim"], config: ModelConfig
) -> Float64[np.ndarray, " half_dim"]:
    """Keep the fast frequencies, divide the slow ones, blend linearly in between."""
    scaling, dim = config.rope_scaling, config.head_dim
    original = scaling.original_max_position or config.max_position

    def dimension(rotations: float) -> float:
        turns = original / (rotations * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(config.rope_theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (np.arange(dim // 2) - low) / (high - low if high != low else 0.001)
    slow = np.clip(ramp, 0.0, 1.0)
    return plain / scaling.factor * slow + plain * (1 - slow)


def _llama3(
    plain: Float64[np.ndarray, " half_dim"], scaling: RopeScaling
) -> Float64[np.ndarray, " half_dim"]:
    """Keep short wavelengths, divide long ones, blend by wavelength in between."""
    assert scaling.original_max_position, "llama3 needs the original context length"
    turns = (
        scaling.original_max_position * plain / (2 * math.pi)
    )  # rotations over the original context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return plain / scaling.factor * (1 - keep) + plain * keep
