"""Matrices of packed integers, which may stand where a layer's float matrix stands.

Every format is read into the one layout of `pallas_kernels.quant_matmul`; the packed arrays are the
parameters, and no dequantised copy outlives a step.
"""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Float32, Int8, Int32

from paged_jax.device import platform
from paged_jax.pytree import pytree
from pallas_kernels import quant_matmul as kernel


@pytree
class QuantisedMatrix:
    """A matrix [in, out] as packed integers: values, and a scale for each group of inputs.

    Attributes:
        values: signed; layout in `pallas_kernels.quant_matmul`.
        scales: as the checkpoint stores them.
        zeros: zero points, in units of the values; None is 0 everywhere.
        order: which input each stored row belongs to, where groups are not runs of inputs.
        bits: of one value, 4 or 8.
    """

    values: Int8[Array, "stored outer"]
    scales: Float[Array, "groups outer"]
    zeros: Int8[Array, "groups outer"] | None = None
    order: Int32[Array, " inner"] | None = None
    bits: int = struct.field(pytree_node=False)


def dequantise(matrix: QuantisedMatrix) -> Float32[Array, "inner outer"]:
    """Return the matrix that the packed values stand for, its inputs in their own order."""
    rows = kernel.dequantise(matrix.values, matrix.scales, matrix.zeros, bits=matrix.bits)
    return rows if matrix.order is None else rows[jnp.argsort(matrix.order)]


def multiply(x: Float[Array, "rows inner"], matrix: QuantisedMatrix) -> Float[Array, "rows outer"]:
    """Multiply by a quantised matrix: dequantised first ("xla"), or on NVIDIA's GPUs by the kernel.

    The kernel is for the few rows of a decode step; wide products gain nothing from it.
    """
    x = x if matrix.order is None else x[:, matrix.order]
    packed = (matrix.values, matrix.scales, matrix.zeros)
    if platform.is_nvidia():
        try:
            return kernel.quant_matmul(x, *packed, bits=matrix.bits)
        except NotImplementedError:
            pass  # a shape outside the kernel's limits
    return kernel.quant_matmul_reference(x, *packed, bits=matrix.bits)


def is_quantised(leaf: object) -> bool:
    """Whether `leaf` is a QuantisedMatrix, for the `is_leaf` of jax.tree.map."""
    return isinstance(leaf, QuantisedMatrix)
