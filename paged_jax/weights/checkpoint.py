"""What the loader asks of a file format, and the checks of every tensor that is read."""

from collections.abc import Collection
from typing import Protocol

import jax.numpy as jnp
import numpy as np

from paged_jax.config import ModelError
from paged_jax.device.sharding import Part, whole

EXPONENT_BITS = {"float32": 0x7F80_0000, "bfloat16": 0x7F80, "float16": 0x7C00}

CHECKED_AT_ONCE = 1 << 18  # elements, so that what is made of them stays in a cache


class Checkpoint(Protocol):
    """Named tensors in one or more files."""

    @property
    def names(self) -> Collection[str]:
        """Every tensor stored."""
        ...

    def name_of(self, weight: str, layer: int | None) -> str:
        """Return how this format names a field of ModelParams or LayerParams."""
        ...

    @property
    def reads_parts(self) -> bool:
        """Whether it costs less to read a part of a tensor than all of it."""
        ...

    def is_harmless(self, name: str) -> bool:
        """Whether a tensor nobody asked for may be left out without a word."""
        ...

    def where(self, name: str) -> str:
        """Return the file that holds a tensor, or should."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it."""
        ...

    def read(self, name: str, part: Part) -> np.ndarray:
        """Return part of a tensor as float32, float16 or bfloat16, in memory nobody else holds."""
        ...


class PackedCheckpoint(Checkpoint, Protocol):
    """A checkpoint that may hold packed integers."""

    def read_integers(self, name: str) -> np.ndarray:
        """Return a tensor of int32."""
        ...


def read_floats(
    checkpoint: Checkpoint,
    name: str,
    shape: tuple[int, ...],
    dtype: str | None = None,
    *,
    part: Part | None = None,
) -> np.ndarray:
    """Return a tensor of the checkpoint's own `shape`, or a part of it.

    Args:
        dtype: to convert to; None keeps the stored one.
        part: None is all.
    Raises:
        ModelError: it has another shape or type, or a value that is not finite.
    """
    check_shape(checkpoint, name, shape)
    array = checkpoint.read(name, part or whole(shape))
    with np.errstate(all="ignore"):  # what does not fit becomes infinite, and is refused below
        array = array.astype(jnp.dtype(dtype or array.dtype), copy=False)
    if not _is_finite(array):
        raise ModelError(
            f"{checkpoint.where(name)}: tensor {name} holds NaN, infinity, or a value beyond "
            f"{array.dtype}"
        )
    return array


def check_shape(checkpoint: Checkpoint, name: str, expected: tuple[int, ...]) -> None:
    """Raise ModelError if a tensor has another shape."""
    actual = checkpoint.shape(name)
    if actual != expected:
        raise ModelError(
            f"{checkpoint.where(name)}: tensor {name} has shape {list(actual)}, "
            f"expected {list(expected)}"
        )


def _is_finite(array: np.ndarray) -> bool:
    """Whether no element has the exponent of infinity and NaN; looks at a few at a time."""
    mask = EXPONENT_BITS[array.dtype.name]
    bits = array.view(np.uint32 if array.itemsize == 4 else np.uint16).reshape(-1)
    parts = (bits[at : at + CHECKED_AT_ONCE] for at in range(0, bits.size, CHECKED_AT_ONCE))
    return not any(np.any((part & part.dtype.type(mask)) == mask) for part in parts)
