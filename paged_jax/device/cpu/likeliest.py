"""The output with the largest product for each row, found without all the products."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32

from paged_jax.device.cpu import kernels
from paged_jax.device.cpu.matmul import PackedMatrix

MIN_ROWS = 24  # fewer rows do not pay for rounding the matrix


def is_faster(matrix: PackedMatrix, num_rows: int) -> bool:
    """Whether `likeliest` takes such a matrix, and is faster than the products and their argmax."""
    is_bfloat16 = matrix.panels.dtype == jnp.bfloat16
    return is_bfloat16 and num_rows >= MIN_ROWS and kernels.loaded().has_pair_products()


def likeliest(
    x: Float32[Array, "rows inner"],
    matrix: PackedMatrix,
    *,
    num_rows: Int32[Array, ""],
    limit: int,
) -> Int32[Array, " rows"]:
    """Return the first output of the largest of `multiply`'s products, for each row.

    Products of 16-bit integers bound the float32 ones, and only those that the bounds leave are
    summed (`csrc/likeliest.h`); so it is the same output to the last bit.

    Args:
        num_rows: the first so many rows are looked at; the others give 0, as do rows of NaN.
        limit: outputs from here on are not looked at.
    """
    result = jax.ShapeDtypeStruct((x.shape[0],), jnp.int32)
    width = np.int64(min(limit, matrix.outer))
    return kernels.call("likeliest", [result], [x, num_rows, matrix.panels], limit=width)[0]
