"""Quantising floats at load: round to nearest, symmetric."""

import numpy as np

from paged_jax.models.quantised import QuantisedMatrix
from paged_jax.weights.packing import quantised_matrix


def quantise(
    weight: np.ndarray, *, bits: int = 8, group_size: int | None = None
) -> QuantisedMatrix:
    """Return a float32 matrix [in, out] as integers, one float32 scale for each column's group.

    Args:
        group_size: inputs that share a scale; it divides their number. None is all.
    """
    inner, outer = weight.shape
    grouped = weight.reshape(-1, group_size or inner, outer)
    largest = np.float32((1 << (bits - 1)) - 1)
    scales = np.abs(grouped).max(axis=1) / largest
    divisors = np.where(scales > 0, scales, np.float32(1))
    values = np.rint(grouped / divisors[:, None]).clip(-largest, largest).astype(np.int8)
    return quantised_matrix(values.reshape(inner, outer), scales, bits=bits)
