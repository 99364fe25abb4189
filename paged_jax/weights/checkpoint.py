"""What the loader asks of a file format, and how one stored tensor becomes one parameter.

Formats keep matrices as [out, in]; the engine keeps them as [in, out].
"""

import logging
from collections.abc import Collection
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from paged_jax.config import ModelConfig, ModelError
from paged_jax.models.params import ModelParams, abstract_params

logger = logging.getLogger("paged_jax")

EXPONENT_BITS = {"float32": 0x7F80_0000, "bfloat16": 0x7F80, "float16": 0x7C00}


class Checkpoint(Protocol):
    """Named tensors in one or more files."""

    @property
    def names(self) -> Collection[str]:
        """Every tensor stored."""
        ...

    def name_of(self, weight: str, layer: int | None) -> str:
        """Return how this format names a field of ModelParams or LayerParams."""
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

    def read(self, name: str) -> np.ndarray:
        """Return a tensor as float32, float16 or bfloat16, in memory nobody else holds."""
        ...


def fill_params(checkpoint: Checkpoint, config: ModelConfig, *, progress: bool) -> ModelParams:
    """Read every parameter of `config` and place it on the device.

    Raises:
        ModelError: a tensor is missing, of another shape or type, or not finite.
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(abstract_params(config))
    names = [checkpoint.name_of(*_field(path)) for path, _ in leaves]
    _check_names(checkpoint, names)
    bar = tqdm(
        zip(names, leaves, strict=True),
        "Loading weights",
        len(names),
        disable=None if progress else True,
    )
    return jax.tree.unflatten(tree, [_load(checkpoint, name, leaf) for name, (_, leaf) in bar])


def _field(path: tuple) -> tuple[str, int | None]:
    """The name of the field a tree path leads to, and its layer."""
    return path[-1].name, path[1].idx if len(path) > 1 else None


def _check_names(checkpoint: Checkpoint, wanted: list[str]) -> None:
    """Refuse what is missing; mention what is left over."""
    for name in wanted:
        if name not in checkpoint.names:
            raise ModelError(f"{checkpoint.where(name)}: tensor {name} is missing")
    extra = sorted(set(checkpoint.names) - set(wanted))
    extra = [name for name in extra if not checkpoint.is_harmless(name)]
    if extra:
        shown = ", ".join(extra[:5]) + (", ..." if len(extra) > 5 else "")
        logger.warning(
            "%s: %d tensors are not used: %s", checkpoint.where(extra[0]), len(extra), shown
        )


def _load(checkpoint: Checkpoint, name: str, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    is_matrix = len(leaf.shape) == 2 and name != checkpoint.name_of("embed", None)
    expected = leaf.shape[::-1] if is_matrix else leaf.shape
    actual = checkpoint.shape(name)
    what = f"{checkpoint.where(name)}: tensor {name}"
    if actual != expected:
        raise ModelError(f"{what} has shape {list(actual)}, expected {list(expected)}")
    with np.errstate(all="ignore"):  # what does not fit becomes infinite, and is refused below
        array = checkpoint.read(name).astype(jnp.dtype(leaf.dtype), copy=False)
    if not _is_finite(array):
        raise ModelError(f"{what} holds NaN, infinity, or a value beyond {leaf.dtype}")
    return jax.device_put(array.T if is_matrix else array)


def _is_finite(array: np.ndarray) -> bool:
    """Whether no element has the exponent of infinity and NaN."""
    mask = EXPONENT_BITS[array.dtype.name]
    bits = array.view(np.uint32 if array.itemsize == 4 else np.uint16)
    return not np.any((bits & bits.dtype.type(mask)) == mask)
