"""Weights of an Orbax checkpoint that `python -m paged_jax.convert` wrote.

Arrays lie in `orbax/`, under transformers' names and as [out, in], in no machine's layout and for
no mesh; the manifest beside it says of every tensor its shape, its type, how it is cut into pieces,
and the CRC-32 of each piece, which is checked whenever a piece is read. Nothing here can run code:
the arrays are raw numbers read by TensorStore, everything else is JSON, and no pickle is opened.
"""

import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import tensorstore

from paged_jax.config import ModelError
from paged_jax.device.sharding import Part, whole
from paged_jax.weights.safetensors_reader import name_of
from paged_jax.weights.source import MANIFEST

FORMAT, VERSION = "paged_jax orbax checkpoint", 1
ARRAYS = "orbax"
FLOATS = ("float32", "float16", "bfloat16")
DTYPES = (*FLOATS, "int32")
REMEDY = "copy the folder again, or convert the model again"


@dataclass(frozen=True)
class StoredTensor:
    """What the manifest says of a tensor.

    Attributes:
        piece: the size of a piece, which divides `shape`.
        checksums: CRC-32 of each piece, the last axis first.
    """

    shape: tuple[int, ...]
    dtype: str
    piece: tuple[int, ...]
    checksums: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Pieces along each axis."""
        return tuple(size // piece for size, piece in zip(self.shape, self.piece, strict=True))

    def pieces(self, part: Part) -> Iterator[tuple[int, Part]]:
        """Yield number and place of every piece that holds some of `part`."""
        spans = [
            range(cut.start // size, -(-cut.stop // size))
            for cut, size in zip(part, self.piece, strict=True)
        ]
        for at in product(*spans):
            place = tuple(
                slice(i * size, (i + 1) * size) for i, size in zip(at, self.piece, strict=True)
            )
            yield int(np.ravel_multi_index(at, self.counts)), place


class OrbaxFolder:
    """The tensors of a converted folder, read piece by piece.

    Raises ModelError when the manifest or a piece is missing, damaged, or of another version.
    """

    def __init__(self, folder: Path, *, is_tied: bool):
        self._path = folder / ARRAYS
        self._tensors = read_manifest(folder)
        if not self._path.is_dir():
            raise ModelError(f"{self._path} is missing, though {MANIFEST} lists it: {REMEDY}")
        self._context = tensorstore.Context()

    @property
    def names(self) -> set[str]:
        """Every tensor stored."""
        return set(self._tensors)

    def name_of(self, weight: str, layer: int | None) -> str:
        """Return the name transformers gives to a weight."""
        return name_of(weight, layer)

    @property
    def reads_parts(self) -> bool:
        """Whether parts cost less than the whole: so."""
        return True

    def is_harmless(self, name: str) -> bool:
        """Whether a tensor may be left over: none, since only what is used was converted."""
        return False

    def where(self, name: str) -> str:
        """Return the folder of the arrays."""
        return str(self._path)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it."""
        return self._tensors[name].shape

    def read(self, name: str, part: Part) -> np.ndarray:
        """Return part of a tensor as stored.

        Raises:
            ModelError: it is of another type than float32, float16 and bfloat16, or damaged.
        """
        return self._read(name, part, FLOATS)

    def read_integers(self, name: str) -> np.ndarray:
        """Return a tensor of int32.

        Raises:
            ModelError: it is of another type, or damaged.
        """
        return self._read(name, whole(self.shape(name)), ("int32",))

    def _read(self, name: str, part: Part, dtypes: tuple[str, ...]) -> np.ndarray:
        tensor = self._tensors[name]
        if tensor.dtype not in dtypes:
            known = ", ".join(dtypes)
            raise ModelError(f"{self._path}: tensor {name} has type {tensor.dtype}, not {known}")
        store = self._open(name, tensor)
        out = np.empty([cut.stop - cut.start for cut in part], jnp.dtype(tensor.dtype))
        for number, place in tensor.pieces(part):
            piece = self._piece(store, place, name)
            if zlib.crc32(piece.view(np.uint8).data) != tensor.checksums[number]:
                raise self._error(name, "is damaged, as its checksum differs")
            target, source = _overlap(part, place)
            out[target] = piece[source]
        return out

    def _open(self, name: str, tensor: StoredTensor) -> Any:
        try:
            store = tensorstore.open(
                array_spec(self._path, name), read=True, open=True, context=self._context
            ).result()
        except ValueError as error:  # TensorStore has no other
            raise self._error(name, f"cannot be opened ({_first_line(error)})") from error
        if store.shape != tensor.shape or store.dtype.name != tensor.dtype:
            raise self._error(name, f"has another shape or type than {MANIFEST} says")
        return store

    def _piece(self, store: Any, place: Part, name: str) -> np.ndarray:
        try:
            return np.ascontiguousarray(store[place].read().result())
        except ValueError as error:
            raise self._error(name, f"cannot be read ({_first_line(error)})") from error

    def _error(self, name: str, what: str) -> ModelError:
        return ModelError(f"{self._path}: tensor {name} {what}: {REMEDY}")


def array_spec(path: Path, name: str) -> dict[str, object]:
    """Return where TensorStore finds one of Orbax's arrays."""
    base = f"file://{path.resolve()}/"
    return {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}}


def read_manifest(folder: Path) -> dict[str, StoredTensor]:
    """Return what the manifest says of each tensor.

    Raises:
        ModelError: it is damaged, or of another program or version.
    """
    path = folder / MANIFEST
    try:
        facts = json.loads(path.read_text("utf-8"))
        if facts["format"] != FORMAT:
            raise ModelError(f"{path} was not written by python -m paged_jax.convert")
        if facts["version"] != VERSION:
            raise ModelError(
                f"{path} is of version {facts['version']!r}, and this program reads {VERSION}: "
                "convert the model again"
            )
        return {str(name): _tensor(stored) for name, stored in facts["tensors"].items()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path} is damaged ({error!r}): {REMEDY}") from error


def _tensor(facts: Any) -> StoredTensor:
    """Check one entry; raises ValueError, KeyError or TypeError."""
    lists = [facts[key] for key in ("shape", "piece", "crc32")]
    if not all(type(number) is int and number >= 0 for listed in lists for number in listed):
        raise ValueError("sizes and checksums must be whole numbers")
    shape, piece, checksums = map(tuple, lists)
    tensor = StoredTensor(shape, facts["dtype"], piece, checksums)
    if tensor.dtype not in DTYPES or 0 in (*shape, *piece):
        raise ValueError(f"a tensor of {tensor.dtype!r} {shape} in pieces of {piece}")
    is_cut = all(size % part == 0 for size, part in zip(shape, piece, strict=True))
    if not is_cut or len(checksums) != math.prod(tensor.counts):
        raise ValueError(f"{len(checksums)} checksums for {shape} in pieces of {piece}")
    return tensor


def _overlap(part: Part, place: Part) -> tuple[Part, Part]:
    """Where the common area of both lies in either."""
    both = [(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(part, place, strict=True)]
    return _moved(both, part), _moved(both, place)


def _moved(spans: list[tuple[int, int]], part: Part) -> Part:
    return tuple(
        slice(start - cut.start, stop - cut.start)
        for (start, stop), cut in zip(spans, part, strict=True)
    )


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:200]
