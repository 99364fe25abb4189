"""The likeliest id of each row of logits, in C++."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from paged_jax.device.cpu import kernels


def argmax(logits: Float[Array, "rows vocab"], *, limit: int | None = None) -> Int[Array, " rows"]:
    """Return the first index of each row's largest value; 0 if every value is -inf or NaN.

    Args:
        limit: columns from here on are not looked at.
    """
    rows, vocab = logits.shape
    result = jax.ShapeDtypeStruct((rows,), jnp.int32)
    width = vocab if limit is None else min(limit, vocab)
    return kernels.call("argmax", [result], [logits], limit=np.int64(width))[0]
