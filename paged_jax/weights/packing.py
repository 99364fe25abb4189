"""What the packed formats share: words of several values, groups of inputs, and the way into the
engine's own layout.

Both formats store unsigned values and zero points in 32-bit words, lowest bits first.
"""

from typing import Any, cast

import numpy as np

from paged_jax.config import ModelError
from paged_jax.models.quantised import QuantisedMatrix
from paged_jax.weights.checkpoint import PackedCheckpoint, check_shape
from pallas_kernels.quant_matmul import pack

WORD_BITS = 32


def read_integers(folder: PackedCheckpoint, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return an int32 tensor of `shape`.

    Raises:
        ModelError: it has another shape or type.
    """
    check_shape(folder, name, shape)
    return folder.read_integers(name)


def unpack_words(words: np.ndarray, bits: int) -> np.ndarray:
    """Return the unsigned 4- or 8-bit values of 32-bit words, along the last axis, as uint8."""
    data = np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8)
    if bits == 8:
        return data
    return np.stack((data & 15, data >> 4), axis=-1).reshape(*data.shape[:-1], -1)


def group_len(inner: int, group_size: int | None, *, bits: int, what: str) -> int:
    """Return how many inputs share a scale.

    Args:
        what: names the matrix in errors.
    Raises:
        ModelError: the groups do not divide the inputs, or 4-bit values do not pair up.
    """
    size = inner if group_size is None else min(group_size, inner)
    if inner % size or (bits == 4 and size % 2):
        raise ModelError(
            f"{what} has {inner} inputs, which are not cut evenly by a group_size of {size}"
        )
    return size


def quantised_matrix(
    values: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | None = None,
    *,
    bits: int,
    order: np.ndarray | None = None,
) -> QuantisedMatrix:
    """Return a matrix in the engine's layout, of host arrays.

    Args:
        values: signed, [in, out], rows in the order of their groups. zeros: signed, or none.
    """
    packed = pack(values, bits=bits, group_size=values.shape[0] // scales.shape[0])
    has_zeros = zeros is not None and zeros.any()
    leaves: dict[str, Any] = {"values": packed, "scales": scales, "order": order}
    return QuantisedMatrix(**leaves, zeros=cast(Any, zeros) if has_zeros else None, bits=bits)


def signed(values: np.ndarray, bits: int) -> np.ndarray:
    """Return unsigned values less the middle of their range, as int8."""
    return (values.astype(np.int16) - (1 << (bits - 1))).astype(np.int8)
