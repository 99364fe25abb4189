"""Every parameter of a model out of its checkpoint.

Formats keep matrices as [out, in]; the engine keeps them as [in, out].
"""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
from tqdm import tqdm

from paged_jax.config import ModelError
from paged_jax.models.layout import WeightLayout
from paged_jax.models.params import ModelParams, abstract_params
from paged_jax.models.quantised import QuantisedMatrix
from paged_jax.weights.allocator import large_buffers_given_back
from paged_jax.weights.checkpoint import Checkpoint
from paged_jax.weights.matrices import MatrixReader
from paged_jax.weights.parts import StoredFloats

logger = logging.getLogger("paged_jax")

READERS = min(4, os.cpu_count() or 1)  # tensors converted at the same time


def fill_params(
    checkpoint: Checkpoint, layout: WeightLayout, matrices: MatrixReader, *, progress: bool
) -> ModelParams:
    """Read every parameter, a few at a time, and place each where the layout says.

    On a mesh, of floats only the parts of this host's devices are read, where the format can.

    Args:
        matrices: reads the matrices of the layers; everything else is floats.
    Raises:
        ModelError: a tensor is missing, of another shape or type, or not finite.
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(abstract_params(layout.config))
    wanted = [Parameter.at(path, leaf, checkpoint) for path, leaf in leaves]
    check_names(checkpoint, [name for item in wanted for name in item.parts(matrices)])

    is_whole = layout.mesh is None or not checkpoint.reads_parts

    def place(item: Parameter) -> Any:
        value = item.read(checkpoint, matrices)
        held = value.read() if is_whole and isinstance(value, StoredFloats) else value
        return layout.place(item.field, held, item.layer)

    with large_buffers_given_back(), ThreadPoolExecutor(READERS, "weights") as readers:
        arrays = readers.map(place, wanted)
        shown = None if progress else True
        bar = tqdm(arrays, "Loading weights", len(wanted), disable=shown)
        return jax.tree.unflatten(tree, list(bar))


@dataclass(frozen=True)
class Parameter:
    """One leaf of ModelParams, and what the checkpoint calls it.

    Attributes:
        field: of ModelParams or of LayerParams.
        layer: None for one of the whole model.
    """

    field: str
    layer: int | None
    name: str
    leaf: jax.ShapeDtypeStruct

    @property
    def is_packable(self) -> bool:
        """Whether it is a matrix of a layer."""
        return self.field.startswith("w_")

    @classmethod
    def at(cls, path: tuple, leaf: jax.ShapeDtypeStruct, checkpoint: Checkpoint) -> "Parameter":
        """Name the leaf at a path of the tree."""
        field, layer = path[-1].name, path[1].idx if len(path) > 1 else None
        return cls(field, layer, checkpoint.name_of(field, layer), leaf)

    def parts(self, matrices: MatrixReader) -> list[str]:
        """Return the tensors it is made of."""
        return matrices.parts(self.name) if self.is_packable else [self.name]

    def read(
        self, checkpoint: Checkpoint, matrices: MatrixReader
    ) -> StoredFloats | QuantisedMatrix:
        """Return it as the engine has it."""
        shape = self.leaf.shape
        if self.is_packable:
            return matrices.read(self.name, (shape[0], shape[1]))
        is_head, dtype = self.field == "unembed", self.leaf.dtype.name
        return StoredFloats(checkpoint, self.name, shape, dtype, is_turned=is_head)


def check_names(checkpoint: Checkpoint, wanted: list[str]) -> None:
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
