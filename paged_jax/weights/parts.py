"""Tensors that are read part by part, so that a host reads what its own devices need, no more."""

from dataclasses import dataclass

import numpy as np

from paged_jax.device.sharding import Part, whole
from paged_jax.weights.checkpoint import Checkpoint, read_floats


@dataclass(frozen=True)
class StoredFloats:
    """A tensor of floats in a checkpoint; `stored[part]` reads that part.

    Attributes:
        shape: as the engine has it.
        dtype: what parts are converted to.
        is_turned: a matrix the engine keeps as [in, out] and the checkpoint as [out, in].
    """

    checkpoint: Checkpoint
    name: str
    shape: tuple[int, ...]
    dtype: str
    is_turned: bool

    def __getitem__(self, part: Part) -> np.ndarray:
        """Read a part, given in the engine's order of axes.

        Raises:
            ModelError: the tensor has another shape or type, or a value that is not finite.
        """
        order = slice(None, None, -1 if self.is_turned else 1)
        stored = self.shape[order]
        array = read_floats(self.checkpoint, self.name, stored, self.dtype, part=part[order])
        return array.T if self.is_turned else array

    def read(self) -> np.ndarray:
        """Read all of it."""
        return self[whole(self.shape)]
