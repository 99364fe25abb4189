"""The norm of a layer's input, and of its sum with what a layer adds, in C++."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32

from paged_jax.device.cpu import kernels


def norms(x: Array) -> bool:
    """Whether these functions take such rows here."""
    return x.dtype == jnp.float32 and kernels.are_usable()


def rms_norm(
    x: Float32[Array, "*rows dim"], weight: Float32[Array, " dim"], eps: float
) -> Float32[Array, "*rows dim"]:
    """Scale each row to a root mean square of one, then by `weight`."""
    result = jax.ShapeDtypeStruct(x.shape, jnp.float32)
    return kernels.call("norm", [result], [x, weight], eps=np.float32(eps))[0]


def add_rms_norm(
    x: Float32[Array, "*rows dim"],
    added: Float32[Array, "*rows dim"],
    weight: Float32[Array, " dim"],
    eps: float,
) -> tuple[Float32[Array, "*rows dim"], Float32[Array, "*rows dim"]]:
    """Return x + added, and its norm."""
    result = jax.ShapeDtypeStruct(x.shape, jnp.float32)
    arrays = [x, added, weight]
    total, normed = kernels.call("add_norm", [result, result], arrays, eps=np.float32(eps))
    return total, normed
