"""Which weights these are, whatever the layout and the mesh they are kept in."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from paged_jax.models.packed import PackedMatrix
from paged_jax.models.params import ModelParams
from paged_jax.models.quantised import QuantisedMatrix

MATRICES = ("w_q", "w_o", "w_gate", "w_up", "w_down")  # w_k and w_v may be repeated on a mesh


def fingerprint(params: ModelParams) -> str:
    """Return a digest of the sums of the bits of each matrix.

    A sum depends on no order, and padding adds nothing. It tells models apart that differ by chance
    or by training; it is no protection against one made to have the same sums.
    """
    matrices: list[Any] = [params.embed]
    matrices += [getattr(layer, name) for layer in params.layers for name in MATRICES]
    matrices += [] if params.unembed is None else [params.unembed]
    sums = jnp.stack([_sum_of_bits(_array_of(matrix)) for matrix in matrices])
    return hashlib.sha256(jax.device_get(sums).tobytes()).hexdigest()


def _array_of(matrix: Any) -> Any:
    if isinstance(matrix, PackedMatrix):
        return matrix.panels
    return matrix.values if isinstance(matrix, QuantisedMatrix) else matrix


@jax.jit
def _sum_of_bits(array: Any) -> Any:
    bits = lax.bitcast_convert_type(array, jnp.dtype(f"uint{8 * array.dtype.itemsize}"))
    return jnp.sum(bits.astype(jnp.uint32), dtype=jnp.uint32)
