"""Every parameter of a model out of its checkpoint.

Formats keep matrices as [out, in]; the engine keeps them as [in, out].
"""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import numpy as np
from tqdm import tqdm

from paged_jax.config import ModelError
from paged_jax.models.layout import WeightLayout
from paged_jax.models.params import ModelParams, abstract_params
from paged_jax.models.quantised import QuantisedMatrix
from paged_jax.weights.checkpoint import Checkpoint, read_floats
from paged_jax.weights.matrices import MatrixReader

logger = logging.getLogger("paged_jax")

READERS = min(4, os.cpu_count() or 1)  # tensors converted at the same time


def fill_params(
    checkpoint: Checkpoint, layout: WeightLayout, matrices: MatrixReader, *, progress: bool
) -> ModelParams:
    """Read every parameter, a few at a time, and place each where the layout says.

    Args:
        matrices: reads the matrices of the layers; everything else is floats.
    Raises:
        ModelError: a tensor is missing, of another shape or type, or not finite.
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(abstract_params(layout.config))
    wanted = [_Parameter.at(path, leaf, checkpoint) for path, leaf in leaves]
    parts = [matrices.parts(item.name) if item.is_packable else [item.name] for item in wanted]
    _check_names(checkpoint, [name for listed in parts for name in listed])
    read = lambda item: layout.place(item.field, item.read(checkpoint, matrices))  # noqa: E731
    with ThreadPoolExecutor(READERS, "weights") as readers:
        arrays = readers.map(read, wanted)
        shown = None if progress else True
        bar = tqdm(arrays, "Loading weights", len(wanted), disable=shown)
        return jax.tree.unflatten(tree, list(bar))


@dataclass(frozen=True)
class _Parameter:
    """One leaf of ModelParams, and what the checkpoint calls it."""

    field: str
    name: str
    leaf: jax.ShapeDtypeStruct

    @property
    def is_packable(self) -> bool:
        return self.field.startswith("w_")

    @classmethod
    def at(cls, path: tuple, leaf: jax.ShapeDtypeStruct, checkpoint: Checkpoint) -> "_Parameter":
        field, layer = path[-1].name, path[1].idx if len(path) > 1 else None
        name = checkpoint.name_of(field, layer)
        return cls(field, name, leaf)

    def read(self, checkpoint: Checkpoint, matrices: MatrixReader) -> np.ndarray | QuantisedMatrix:
        shape = self.leaf.shape
        if self.is_packable:
            return matrices.read(self.name, (shape[0], shape[1]))
        is_head = self.field == "unembed"
        stored = shape[::-1] if is_head else shape
        array = read_floats(checkpoint, self.name, stored, self.leaf.dtype.name)
        return array.T if is_head else array


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
