"""Products with matrices packed for the kernels; `csrc/matmul.h` has the layout."""

import ctypes
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float32, Int, Int32, Shaped

from paged_jax.device.cpu import kernels
from paged_jax.pytree import pytree

DTYPES = ("float32", "bfloat16", "int8")


@pytree
class PackedMatrix:
    """A matrix [inner, outer] in the kernels' layout, which depends on the machine.

    Attributes:
        panels: float32 and int8 [panels inner width]; bfloat16 [panels pairs width 2].
        scales: what each output is multiplied with; int8 has them, floats do not.
    """

    panels: Shaped[Array, "panels stored width *pair"]
    scales: Float32[Array, " outer"] | None = None
    inner: int = struct.field(pytree_node=False)
    outer: int = struct.field(pytree_node=False)


def pack(
    weight: Shaped[np.ndarray, "inner outer"], scales: np.ndarray | None = None
) -> PackedMatrix:
    """Return a float32, bfloat16 or int8 matrix in the kernels' layout; `scales` go with int8."""
    assert weight.dtype.name in DTYPES, f"{weight.dtype} has no packed layout"
    (inner, outer), library = weight.shape, kernels.loaded()
    width = library.panel_width()
    num_panels = -(-outer // width)
    is_paired = weight.dtype == jnp.bfloat16
    shape = (num_panels, -(-inner // 2), width, 2) if is_paired else (num_panels, inner, width)
    panels = np.empty(shape, weight.dtype)
    strides = [stride // weight.itemsize for stride in weight.strides]
    sizes = map(ctypes.c_int64, (weight.itemsize, inner, outer, *strides))
    address = ctypes.c_void_p
    library.pack_panels(address(weight.ctypes.data), *sizes, address(panels.ctypes.data))
    return PackedMatrix(
        panels=jax.device_put(panels),
        scales=None if scales is None else jax.device_put(scales),
        inner=inner,
        outer=outer,
    )


def multiply(
    x: Float32[Array, "rows inner"],
    matrices: Sequence[PackedMatrix],
    *,
    num_rows: Int32[Array, ""] | None = None,
) -> list[Float32[Array, "rows _"]]:
    """Multiply the same rows with several matrices of one dtype, in one call.

    Args:
        num_rows: the first so many are multiplied, the others give 0 at no cost. None: all.
    """
    outers = [matrix.outer for matrix in matrices]
    return _call(x, matrices, outers, num_rows=num_rows, is_gated=False)


def multiply_gated(
    x: Float32[Array, "rows inner"],
    gate: PackedMatrix,
    up: PackedMatrix,
    *,
    num_rows: Int32[Array, ""] | None = None,
) -> Float32[Array, "rows outer"]:
    """Return silu(x @ gate) * (x @ up); `num_rows` as for `multiply`."""
    return _call(x, (gate, up), [gate.outer], num_rows=num_rows, is_gated=True)[0]


def read_columns(
    matrix: PackedMatrix, columns: Int[Array, " tokens"]
) -> Float32[Array, "tokens inner"]:
    """Return columns of a matrix of floats: the embedding of tokens, where it is also the head."""
    result = jax.ShapeDtypeStruct((columns.shape[0], matrix.inner), jnp.float32)
    return kernels.call("read_columns", [result], [columns, matrix.panels])[0]


def _call(
    x: Array,
    matrices: Sequence[PackedMatrix],
    outers: Sequence[int],
    *,
    num_rows: Array | None,
    is_gated: bool,
) -> list[Array]:
    results = [jax.ShapeDtypeStruct((x.shape[0], outer), jnp.float32) for outer in outers]
    count = jnp.int32(x.shape[0]) if num_rows is None else num_rows
    return kernels.call(
        "matmul", results, [x, count, *jax.tree.leaves(matrices)], is_gated=is_gated
    )
