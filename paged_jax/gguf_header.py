"""The header of a GGUF file: metadata and where each tensor lies. Standard library only.

Every count and size is checked against the file's length before anything is allocated, so a forged
header costs nothing. Source: the GGUF specification of ggml, versions 2 and 3, little-endian.
"""

import mmap
import struct
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TypeVar

from paged_jax.config import ModelError

Item = TypeVar("Item")
Value = bool | int | float | str | list[bool] | list[int] | list[float] | list[str]

STRING, ARRAY = 8, 9
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
SMALLEST_ENTRY = 13  # bytes of a metadata pair with an empty key and a one-byte value
SMALLEST_TENSOR = 24


@dataclass(frozen=True)
class GGMLType:
    """A tensor type: `block_len` elements are stored in `block_bytes`."""

    name: str
    block_len: int
    block_bytes: int


GGML_TYPES = {
    number: GGMLType(name, block_len, block_bytes)
    for number, name, block_len, block_bytes in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (30, "BF16", 1, 2),
    )
}


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies and how it is stored.

    Attributes:
        shape: slowest axis first, as NumPy has it.
        offset: bytes from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return prod(self.shape) // self.type.block_len * self.type.block_bytes


@dataclass(frozen=True)
class GGUFHeader:
    """What a GGUF file says about itself."""

    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]


def read_header(path: Path) -> GGUFHeader:
    """Read and check the header of a GGUF file.

    Raises:
        ModelError: not a GGUF file, of another version or byte order, truncated, forged, or with a
            tensor of a type that is not supported.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(_Cursor(data, path))
    except ModelError:
        raise
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as a GGUF file: {error}") from error


class _Cursor:
    """A position in the file; reading past its end is an error that names the file."""

    def __init__(self, data: mmap.mmap, path: Path):
        self.data, self.path, self.at, self.size = data, path, 0, len(data)

    def error(self, message: str) -> ModelError:
        return ModelError(f"{self.path}: {message}")

    def take(self, length: int) -> bytes:
        if length > self.size - self.at:
            raise self.error(f"truncated: {length} bytes expected at {self.at} of {self.size}")
        self.at += length
        return self.data[self.at - length : self.at]

    def number(self, code: str) -> int:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        return self.take(self.number("Q")).decode("utf-8")

    def count(self, code: str, what: str, smallest: int) -> int:
        """Read a count of things that take at least `smallest` bytes each."""
        count = self.number(code)
        if count * smallest > self.size - self.at:
            raise self.error(f"{count} {what} do not fit into a file of {self.size} bytes")
        return count


def _parse(cursor: _Cursor) -> GGUFHeader:
    if cursor.take(4) != b"GGUF":
        raise cursor.error("not a GGUF file (its first four bytes are not GGUF)")
    version = cursor.number("I")
    if version not in (2, 3):
        hint = " (big-endian)" if version >= 1 << 16 else ""
        raise cursor.error(
            f"GGUF version {version}{hint} is not supported; versions 2 and 3, little-endian, are"
        )
    num_tensors = cursor.count("Q", "tensors", SMALLEST_TENSOR)
    num_entries = cursor.count("Q", "metadata entries", SMALLEST_ENTRY)
    metadata = _named(cursor, "metadata key", [_entry(cursor) for _ in range(num_entries)])
    infos = [_tensor_info(cursor) for _ in range(num_tensors)]
    start = _aligned(cursor, metadata.get("general.alignment", 32))
    placed = [(info.name, _placed(cursor, info, start)) for info in infos]
    return GGUFHeader(metadata, _named(cursor, "tensor", placed))


def _named(cursor: _Cursor, what: str, pairs: list[tuple[str, Item]]) -> dict[str, Item]:
    named = dict(pairs)
    if len(named) != len(pairs):
        raise cursor.error(f"a {what} occurs twice")
    return named


def _entry(cursor: _Cursor) -> tuple[str, Value]:
    key, kind = cursor.text(), cursor.number("I")
    if kind == ARRAY:
        return key, _array(cursor, key)
    if kind == STRING:
        return key, cursor.text()
    if kind not in SCALARS:
        raise cursor.error(f"{key} has the unknown value type {kind}")
    return key, cursor.number(SCALARS[kind])


def _array(cursor: _Cursor, key: str) -> Value:
    kind = cursor.number("I")
    if kind == STRING:
        count = cursor.count("Q", f"strings of {key}", 8)
        return [cursor.text() for _ in range(count)]
    if kind not in SCALARS:
        raise cursor.error(f"{key} is an array of the unsupported value type {kind}")
    size = struct.calcsize("<" + SCALARS[kind])
    count = cursor.count("Q", f"values of {key}", size)
    return list(struct.unpack(f"<{count}{SCALARS[kind]}", cursor.take(count * size)))


def _tensor_info(cursor: _Cursor) -> TensorInfo:
    """Read one tensor's record; its offset still counts from the start of the data."""
    name, num_axes = cursor.text(), cursor.number("I")
    if not 1 <= num_axes <= 4:
        raise cursor.error(f"tensor {name} has {num_axes} axes; 1 to 4 are legal")
    shape = tuple(cursor.number("Q") for _ in range(num_axes))[::-1]
    number, offset = cursor.number("I"), cursor.number("Q")
    if number not in GGML_TYPES:
        known = ", ".join(kind.name for kind in GGML_TYPES.values())
        raise cursor.error(f"tensor {name} has type {number}, which is not supported; {known} are")
    return TensorInfo(name, shape, GGML_TYPES[number], offset)


def _aligned(cursor: _Cursor, alignment: Value) -> int:
    """Return where the tensors' data starts."""
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment must be a power of two, not {alignment!r}")
    return -(-cursor.at // alignment) * alignment


def _placed(cursor: _Cursor, info: TensorInfo, start: int) -> TensorInfo:
    """Return the record with its offset in the file, if the tensor lies within it."""
    placed = replace(info, offset=start + info.offset)
    end = placed.offset + placed.num_bytes
    if not all(info.shape) or info.shape[-1] % info.type.block_len:
        raise cursor.error(
            f"tensor {info.name} of type {info.type.name} cannot have the shape {list(info.shape)}"
        )
    if end > cursor.size:
        raise cursor.error(f"truncated: tensor {info.name} ends at byte {end} of {cursor.size}")
    return placed
