"""Matrices in the CPU kernels' layout, which may stand where a float matrix stands.

The packed array is the parameter. Where the head is the embedding, one array serves both.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from paged_jax.config import ModelConfig
from paged_jax.device.cpu import likeliest
from paged_jax.device.cpu.matmul import PackedMatrix, multiply, multiply_gated, pack, read_columns
from paged_jax.device.derivative import with_derivative
from paged_jax.device.sharding import gather_rows
from paged_jax.models.quantised import QuantisedMatrix

Count = Int[Array | np.ndarray, ""]  # constants come as numpy's when differentiated
HIGHEST = jax.lax.Precision.HIGHEST

Matrix = Float[Array, "_ _"] | QuantisedMatrix | PackedMatrix

__all__ = [
    "Matrix",
    "PackedMatrix",
    "gated_product",
    "largest_output",
    "look_up",
    "multiply_packed",
    "place",
    "products",
    "unpacked",
]


def place(
    field: str, value: np.ndarray | QuantisedMatrix, config: ModelConfig
) -> jax.Array | QuantisedMatrix | PackedMatrix:
    """Put a field of ModelParams or LayerParams on the device, packed if `config` says so.

    Args:
        value: matrices are [in, out].
    """
    return jax.tree.map(
        jax.device_put, _packed(field, value, config) if config.is_packed else value
    )


def _packed(
    field: str, value: np.ndarray | QuantisedMatrix, config: ModelConfig
) -> np.ndarray | QuantisedMatrix | PackedMatrix:
    """The field as the kernels want it; vectors and an embedding that is not the head stay."""
    if isinstance(value, QuantisedMatrix):
        return _packed_integers(value)
    if field == "embed":
        return pack(value.T) if config.tie_embeddings else value
    return pack(value) if field == "unembed" or field.startswith("w_") else value


def look_up(
    embed: Float[Array, "vocab embed"] | PackedMatrix, tokens: Int[Array, " tokens"], dtype: str
) -> Float[Array, "tokens embed"]:
    """Return the embedding of each token."""
    if isinstance(embed, PackedMatrix):
        columns = lambda embed, tokens: unpacked(embed).T[tokens]  # noqa: E731
        return with_derivative(read_columns, columns)(embed, tokens).astype(dtype)
    return gather_rows(embed, tokens).astype(dtype)


def products(
    x: Float[Array, "rows inner"],
    matrices: Sequence[Matrix],
    *,
    num_rows: Int[Array, ""] | None = None,
) -> list[Float[Array, "rows _"]] | None:
    """Multiply the same rows with packed matrices of one dtype, in one call; None: they are not.

    Args:
        num_rows: rows that are not padding; the products of others are 0.
    """
    listed = [matrix for matrix in matrices if isinstance(matrix, PackedMatrix)]
    if len(listed) < len(matrices) or len({matrix.panels.dtype for matrix in listed}) > 1:
        return None
    return multiply_packed(x, listed, num_rows=num_rows)


def gated_product(
    x: Float[Array, "rows inner"],
    gate: Matrix,
    up: Matrix,
    *,
    num_rows: Int[Array, ""] | None = None,
) -> Float[Array, "rows _"] | None:
    """Return silu(x @ gate) * (x @ up) from one call; None unless both are packed in one dtype."""
    if not isinstance(gate, PackedMatrix) or not isinstance(up, PackedMatrix):
        return None
    if gate.panels.dtype != up.panels.dtype:
        return None
    count = _count(x, num_rows)
    kernel = lambda x, count, gate, up: multiply_gated(x, gate, up, num_rows=count)  # noqa: E731
    return with_derivative(kernel, _gated_product)(x, count, gate, up)


def multiply_packed(
    x: Float[Array, "rows inner"],
    matrices: Sequence[PackedMatrix],
    *,
    num_rows: Int[Array, ""] | None = None,
) -> list[Float[Array, "rows _"]]:
    """Multiply the same rows with packed matrices of one dtype; `num_rows` as for `products`."""
    kernel = lambda x, count, matrices: multiply(x, matrices, num_rows=count)  # noqa: E731
    return with_derivative(kernel, _products)(x, _count(x, num_rows), list(matrices))


def largest_output(
    x: Float[Array, "rows inner"], matrix: Matrix, *, num_rows: Int[Array, ""], limit: int
) -> Int[Array, " rows"] | None:
    """Return the first output below `limit` of each row's largest product.

    None: nothing is faster than the products and their argmax.
    """
    if not isinstance(matrix, PackedMatrix) or not likeliest.is_faster(matrix, x.shape[0]):
        return None
    return likeliest.likeliest(x, matrix, num_rows=num_rows, limit=limit)


def unpacked(matrix: PackedMatrix) -> Float[Array, "inner outer"]:
    """Return the matrix that is packed, in float32."""
    panels = matrix.panels.astype(jnp.float32)
    if panels.ndim == 4:  # pairs of inputs
        panels = panels.swapaxes(2, 3).reshape(panels.shape[0], -1, panels.shape[2])
    rows = panels.swapaxes(0, 1).reshape(panels.shape[1], -1)[: matrix.inner, : matrix.outer]
    return rows if matrix.scales is None else rows * matrix.scales[None, :]


def _products(x: Array, count: Count, matrices: Sequence[PackedMatrix]) -> list[Array]:
    """What `multiply` computes, in JAX's own operations."""
    is_row = jnp.arange(x.shape[0], dtype=jnp.int32)[:, None] < count
    x = jnp.where(is_row, x, 0.0)
    return [jnp.matmul(x, unpacked(matrix), precision=HIGHEST) for matrix in matrices]


def _gated_product(x: Array, count: Count, gate: PackedMatrix, up: PackedMatrix) -> Array:
    to_gate, to_up = _products(x, count, [gate, up])
    return jax.nn.silu(to_gate) * to_up


def _count(x: Array, num_rows: Array | None) -> Array:
    return jnp.int32(x.shape[0]) if num_rows is None else num_rows


def _packed_integers(matrix: QuantisedMatrix) -> QuantisedMatrix | PackedMatrix:
    """The kernels take 8 bits with one scale for each output; the rest is dequantised by XLA."""
    is_plain = matrix.bits == 8 and matrix.zeros is None and matrix.order is None
    if not is_plain or matrix.scales.shape[0] > 1:
        return matrix
    scales = np.asarray(matrix.scales[0], np.float32)
    return pack(np.asarray(matrix.values), scales)
