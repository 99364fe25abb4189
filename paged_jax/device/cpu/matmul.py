"""Products with matrices packed for the kernels; `csrc/matmul.h` has the layout."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float32, Shaped

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
    inner, outer = weight.shape
    is_paired = weight.dtype == jnp.bfloat16
    width = kernels.panel_width()
    padded = np.pad(weight, ((0, inner % 2 if is_paired else 0), (0, -outer % width)))
    if is_paired:
        panels = padded.reshape(-1, 2, padded.shape[1] // width, width).transpose(2, 0, 3, 1)
    else:
        panels = padded.reshape(inner, -1, width).swapaxes(0, 1)
    return PackedMatrix(
        panels=jax.device_put(np.ascontiguousarray(panels)),
        scales=None if scales is None else jax.device_put(scales),
        inner=inner,
        outer=outer,
    )


def multiply(
    x: Float32[Array, "rows inner"], matrices: Sequence[PackedMatrix]
) -> list[Float32[Array, "rows _"]]:
    """Multiply the same rows with several matrices of one dtype, in one call."""
    return _call(x, matrices, [matrix.outer for matrix in matrices], is_gated=False)


def multiply_gated(
    x: Float32[Array, "rows inner"], gate: PackedMatrix, up: PackedMatrix
) -> Float32[Array, "rows outer"]:
    """Return silu(x @ gate) * (x @ up)."""
    return _call(x, (gate, up), [gate.outer], is_gated=True)[0]


def _call(
    x: Array, matrices: Sequence[PackedMatrix], outers: Sequence[int], *, is_gated: bool
) -> list[Array]:
    results = [jax.ShapeDtypeStruct((x.shape[0], outer), jnp.float32) for outer in outers]
    return kernels.call("matmul", results, [x, *jax.tree.leaves(matrices)], is_gated=is_gated)
