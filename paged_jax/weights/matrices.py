"""Three ways to read the matrices of a layer: as floats, quantised now, quantised before."""

from typing import Protocol

from paged_jax.config import Quantisation
from paged_jax.models.quantised import QuantisedMatrix
from paged_jax.weights.awq import read_awq
from paged_jax.weights.checkpoint import Checkpoint, PackedCheckpoint
from paged_jax.weights.gptq import read_gptq
from paged_jax.weights.int8 import quantise
from paged_jax.weights.parts import StoredFloats


class MatrixReader(Protocol):
    """Reads matrices, named as if they were floats, as [in, out]; floats only when they are cut."""

    def parts(self, name: str) -> list[str]:
        """Return the tensors a matrix is made of."""
        ...

    def read(self, name: str, shape: tuple[int, int]) -> StoredFloats | QuantisedMatrix:
        """Return a matrix of `shape` [in, out]; raises ModelError naming the tensor at fault."""
        ...


class PlainMatrices:
    """Floats, converted to `dtype`."""

    def __init__(self, checkpoint: Checkpoint, dtype: str):
        self._checkpoint, self._dtype = checkpoint, dtype

    def parts(self, name: str) -> list[str]:
        """Return the one tensor."""
        return [name]

    def read(self, name: str, shape: tuple[int, int]) -> StoredFloats:
        """Return the matrix, turned to [in, out]."""
        return StoredFloats(self._checkpoint, name, shape, self._dtype, is_turned=True)


class Int8Matrices:
    """Floats, quantised to 8 bits as they are read."""

    def __init__(self, checkpoint: Checkpoint):
        self._checkpoint = checkpoint

    def parts(self, name: str) -> list[str]:
        """Return the one tensor."""
        return [name]

    def read(self, name: str, shape: tuple[int, int]) -> QuantisedMatrix:
        """Return the matrix, turned to [in, out]."""
        stored = StoredFloats(self._checkpoint, name, shape, "float32", is_turned=True)
        return quantise(stored.read())


class PackedMatrices:
    """Packed by GPTQ or AWQ; those the packer left alone are floats."""

    def __init__(self, folder: PackedCheckpoint, dtype: str, scheme: Quantisation):
        self._folder, self._scheme = folder, scheme
        self._plain = PlainMatrices(folder, dtype)

    def parts(self, name: str) -> list[str]:
        """Return the tensors a matrix is made of; the list of groups only where there must be."""
        if name in self._folder.names:
            return [name]
        stem = name.removesuffix("weight")
        parts = [stem + part for part in ("qweight", "qzeros", "scales")]
        has_order = self._scheme.needs_order or stem + "g_idx" in self._folder.names
        return [*parts, stem + "g_idx"] if has_order else parts

    def read(self, name: str, shape: tuple[int, int]) -> StoredFloats | QuantisedMatrix:
        """Return the matrix in the engine's layout."""
        if name in self._folder.names:
            return self._plain.read(name, shape)
        read = read_gptq if self._scheme.method == "gptq" else read_awq
        return read(self._folder, name.removesuffix("weight"), shape, self._scheme)
