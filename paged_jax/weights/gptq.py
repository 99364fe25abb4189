"""GPTQ: values packed along the inputs, zero points along the outputs, scales [groups, out].

In the first `checkpoint_format` 1 is taken off every zero point before it is stored, by
subtraction from the whole packed word: a zero point of 0 borrows from its neighbour, and adding 1
to each field of the word gives everything back. With `desc_act` the group of each input is listed;
rows are then sorted by group once, here, and activations are gathered in that order at run time.
"""

import numpy as np

from paged_jax.config import ModelError, Quantisation
from paged_jax.models.quantised import QuantisedMatrix
from paged_jax.weights.checkpoint import PackedCheckpoint, read_floats
from paged_jax.weights.packing import (
    WORD_BITS,
    group_len,
    quantised_matrix,
    read_integers,
    signed,
    unpack_words,
)


def read_gptq(
    folder: PackedCheckpoint, stem: str, shape: tuple[int, int], scheme: Quantisation
) -> QuantisedMatrix:
    """Read one matrix of `shape` [in, out], stored as `stem` + qweight, qzeros, scales, g_idx.

    Raises:
        ModelError: names the tensor whose shape, type or content is not what the scheme says.
    """
    (inner, outer), bits = shape, scheme.bits
    what = f"{folder.where(stem + 'qweight')}: {stem}qweight"
    size = group_len(inner, scheme.group_size, bits=bits, what=what)
    groups, per_word = inner // size, WORD_BITS // bits
    words = read_integers(folder, stem + "qweight", (inner // per_word, outer))
    values = signed(unpack_words(words.T, bits).T, bits)
    words = read_integers(folder, stem + "qzeros", (groups, -(-outer // per_word)))
    zeros = unpack_words(_shifted(words, scheme), bits)[:, :outer]
    scales = read_floats(folder, stem + "scales", (groups, outer))
    order = _order(folder, stem, inner, size)
    return quantised_matrix(
        values if order is None else values[order],
        scales,
        signed(zeros, bits),
        bits=bits,
        order=order,
    )


def _shifted(words: np.ndarray, scheme: Quantisation) -> np.ndarray:
    """Add what the zero points lack to every field of the words."""
    ones = sum(scheme.zero_shift << at for at in range(0, WORD_BITS, scheme.bits))
    return words.view(np.uint32) + np.uint32(ones)


def _order(folder: PackedCheckpoint, stem: str, inner: int, size: int) -> np.ndarray | None:
    """Return the inputs sorted by group; None if they are already."""
    name = stem + "g_idx"
    if name not in folder.names:
        return None
    group_of = read_integers(folder, name, (inner,))
    order = np.argsort(group_of, kind="stable").astype(np.int32)
    if not np.array_equal(group_of[order], np.arange(inner) // size):
        raise ModelError(
            f"{folder.where(name)}: {name} must list {size} inputs for each of {inner // size} "
            "groups"
        )
    return None if np.array_equal(order, np.arange(inner)) else order
