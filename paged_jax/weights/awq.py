"""AWQ's "gemm" layout: values and zero points packed along the outputs, eight to a word."""

import numpy as np

from paged_jax.config import ModelError, Quantisation
from paged_jax.models.quantised import QuantisedMatrix
from paged_jax.weights.checkpoint import PackedCheckpoint, read_floats
from paged_jax.weights.packing import (
    group_len,
    quantised_matrix,
    read_integers,
    signed,
    unpack_words,
)

BITS = 4
FIELDS = (0, 4, 1, 5, 2, 6, 3, 7)  # where in its word each of eight neighbouring columns lies


def read_awq(
    folder: PackedCheckpoint, stem: str, shape: tuple[int, int], scheme: Quantisation
) -> QuantisedMatrix:
    """Read one matrix of `shape` [in, out], stored as `stem` + qweight, qzeros, scales.

    Raises:
        ModelError: names the tensor whose shape, type or content is not what the scheme says.
    """
    inner, outer = shape
    what = f"{folder.where(stem + 'qweight')}: {stem}qweight"
    size = group_len(inner, scheme.group_size, bits=BITS, what=what)
    if outer % len(FIELDS):
        raise ModelError(f"{what} must have a multiple of {len(FIELDS)} outputs, not {outer}")
    groups, columns = inner // size, outer // len(FIELDS)
    values = _columns(read_integers(folder, stem + "qweight", (inner, columns)))
    zeros = _columns(read_integers(folder, stem + "qzeros", (groups, columns)))
    scales = read_floats(folder, stem + "scales", (groups, outer))
    return quantised_matrix(signed(values, BITS), scales, signed(zeros, BITS), bits=BITS)


def _columns(words: np.ndarray) -> np.ndarray:
    """Unpack words and put the columns in order."""
    fields = unpack_words(words, BITS).reshape(len(words), -1, len(FIELDS))
    return fields[:, :, FIELDS].reshape(len(words), -1)
