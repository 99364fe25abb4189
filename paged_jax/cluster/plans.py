"""What rank 0 tells its followers before each call of a program: which, and the host's arrays.

A message is a header and a payload: which of the program's arrays follow, and their bytes; the
others are as both sides have them for padding (most steps penalise, bias and mask nothing). Shapes
and dtypes follow from the configuration alone. Nothing is parsed and nothing is unpickled; what is
not exactly of this form is refused.
"""

import struct
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paged_jax.compiled.programs import ProgramKey, Programs
from paged_jax.device.step_batch import empty_batch

HEADER = struct.Struct("!4sIQQ")  # magic, kind, number, bytes that follow
PRESENT = struct.Struct("!Q")  # bit i: array i follows
MAGIC = b"PJX1"
PULSE, END = 0xFFFF_FFFE, 0xFFFF_FFFF  # kinds that are no programs: alive, and done
HOST_ARGUMENTS = {  # which arguments of each program the host makes; the others are on the devices
    "backbone": slice(2, 3),
    "draw": slice(2, 3),
    "draw plain": slice(2, 3),
    "score": slice(1, 3),
    "copy": slice(1, 3),
}


class BadMessage(ValueError):
    """Bytes that are not of the format; the connection cannot be used any more."""


class Plans:
    """The messages of one engine: arrays to bytes on rank 0, bytes to arrays on the others."""

    def __init__(self, programs: Programs):
        self._keys = sorted(programs.compile_seconds)
        self._kinds = {key: kind for kind, key in enumerate(self._keys)}
        self._padding = [jax.tree.flatten(_padding(programs, *key)) for key in self._keys]
        self._limits = [PRESENT.size + sum(a.nbytes for a in leaves) for leaves, _ in self._padding]

    def pack(self, key: ProgramKey, arguments: tuple[Any, ...], number: int) -> bytes:
        """Return the message for one call, given all its arguments."""
        kind = self._kinds[key]
        (padding, tree), present, sent = self._padding[kind], 0, []
        leaves, its_tree = jax.tree.flatten(arguments[HOST_ARGUMENTS[key[0]]])
        assert its_tree == tree, f"{key} is called with other arguments than followers know of"
        for index, (leaf, neutral) in enumerate(zip(leaves, padding, strict=True)):
            assert leaf.shape == neutral.shape and leaf.dtype == neutral.dtype, key
            if leaf is not neutral:
                present |= 1 << index
                sent.append(leaf.tobytes())
        payload = b"".join((PRESENT.pack(present), *sent))
        return HEADER.pack(MAGIC, kind, number, len(payload)) + payload

    def check_length(self, kind: int, length: int) -> None:
        """Raise BadMessage unless a message of this kind can be so long."""
        if kind in (PULSE, END):
            low, high = 0, 0
        elif kind < len(self._limits):
            low, high = PRESENT.size, self._limits[kind]
        else:
            raise BadMessage(f"there is no program {kind}")
        if not low <= length <= high:
            raise BadMessage(f"{length} bytes are not the size of a message of kind {kind}")

    def unpack(self, kind: int, payload: bytes) -> tuple[ProgramKey, Any]:
        """Return the program and its arrays; raises BadMessage."""
        padding, tree = self._padding[kind]
        (present,) = PRESENT.unpack_from(payload)
        sent = [leaf for index, leaf in enumerate(padding) if present >> index & 1]
        num_bytes = PRESENT.size + sum(leaf.nbytes for leaf in sent)
        if present >> len(padding) or num_bytes != len(payload):
            raise BadMessage(f"the arrays of program {kind} are of another size")
        return self._keys[kind], jax.tree.unflatten(tree, _cut(payload, padding, present))


def read_header(data: bytes) -> tuple[int, int, int]:
    """Return kind, number and length of a message; raises BadMessage."""
    magic, kind, number, length = HEADER.unpack(data)
    if magic != MAGIC:
        raise BadMessage("the magic bytes are others")
    return kind, number, length


def _cut(payload: bytes, padding: Sequence[np.ndarray], present: int) -> list[np.ndarray]:
    """Return the arrays: those that are sent, each in aligned memory of its own, and padding."""
    arrays, at = list[np.ndarray](), PRESENT.size
    for index, leaf in enumerate(padding):
        if present >> index & 1:
            flat = np.frombuffer(payload, np.uint8, leaf.nbytes, at).copy()
            at += leaf.nbytes
            leaf = flat.view(leaf.dtype).reshape(leaf.shape)
        arrays.append(leaf)
    return arrays


def _padding(programs: Programs, name: str, size: int) -> tuple[Any, ...]:
    """Return what the host gives to a program at each call, filled with padding."""
    if name == "backbone":
        return (empty_batch(programs.batch_shape(size)),)
    if name == "copy":
        return np.zeros(size, np.int32), np.zeros(size, np.int32)
    if name == "score":
        model = programs.config.model
        hidden = np.zeros((size, model.embed_dim), jnp.dtype(model.activation_dtype))
        return hidden, np.zeros(size, np.int32)
    return (programs.neutral_rows(size, is_plain=name == "draw plain"),)
