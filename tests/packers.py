"""GPTQ and AWQ checkpoints packed with plain NumPy, from the formats' descriptions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.numpy
from tiny import make_tiny_folder

AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight columns each field of a word holds


class Packed(NamedTuple):
    """The stored parts of one matrix, and the float32 matrix [in, out] they stand for."""

    parts: dict[str, np.ndarray]
    dense: np.ndarray


Packer = Callable[[np.random.Generator, int, int], Packed]


def pack_gptq(
    rng: np.random.Generator,
    inner: int,
    outer: int,
    *,
    bits: int = 4,
    group_size: int = 32,
    is_first_format: bool = True,
    sym: bool = False,
    desc_act: bool = False,
    has_g_idx: bool = True,
) -> Packed:
    """Pack a random matrix; asymmetric zero points take every value from 0 on."""
    size = inner if group_size == -1 else min(group_size, inner)
    groups, top = inner // size, 1 << bits
    values = rng.integers(0, top, (inner, outer))
    zeros = rng.integers(0, top, (groups, outer))
    zeros = np.full_like(zeros, top // 2) if sym else zeros
    scales = rng.uniform(0.01, 0.03, (groups, outer)).astype(np.float16)
    g_idx = (rng.permutation(inner) if desc_act else np.arange(inner)) // size
    dense = (values - zeros[g_idx]) * scales[g_idx].astype(np.float32)
    ones = sum(1 << shift for shift in range(0, 32, bits)) if is_first_format else 0
    qzeros = pack_words(zeros, bits).view(np.uint32) - np.uint32(ones)
    parts = {
        "qweight": np.ascontiguousarray(pack_words(values.T, bits).T),
        "qzeros": qzeros.view(np.int32),
        "scales": scales,
        "g_idx": g_idx.astype(np.int32),
    }
    if not has_g_idx:
        del parts["g_idx"]
    return Packed(parts, dense.astype(np.float32))


def pack_awq(rng: np.random.Generator, inner: int, outer: int, *, group_size: int = 32) -> Packed:
    """Pack a random matrix in AWQ's "gemm" layout."""
    size = min(group_size, inner)
    values = rng.integers(0, 16, (inner, outer))
    zeros = rng.integers(0, 16, (inner // size, outer))
    scales = rng.uniform(0.01, 0.03, zeros.shape).astype(np.float16)
    spread = lambda part: np.repeat(part, size, axis=0)  # noqa: E731
    dense = (values - spread(zeros)) * spread(scales.astype(np.float32))
    shuffled = lambda array: array.reshape(len(array), -1, 8)[:, :, AWQ_COLUMNS]  # noqa: E731
    parts = {
        "qweight": pack_words(shuffled(values).reshape(values.shape), 4),
        "qzeros": pack_words(shuffled(zeros).reshape(zeros.shape), 4),
        "scales": scales,
    }
    return Packed(parts, dense.astype(np.float32))


def pack_words(values: np.ndarray, bits: int) -> np.ndarray:
    """Put 32 / bits neighbours of each row into an int32, lowest bits first; pad the last word."""
    count = 32 // bits
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % count))).astype(np.uint32)
    fields = padded.reshape(len(values), -1, count)
    words = np.zeros(fields.shape[:2], np.uint32)
    for index in range(count):
        words |= fields[:, :, index] << np.uint32(bits * index)
    return words.view(np.int32)


def make_packed_folders(path: Path, pack: Packer, **quantization_config) -> tuple[Path, Path]:
    """Write one tiny model twice: packed, and in the floats that the packed values stand for."""
    packed = make_tiny_folder(path / "packed", quantization_config=quantization_config)
    plain = make_tiny_folder(path / "plain")
    rng, floats = np.random.default_rng(1), safetensors.numpy.load_file(plain / MODEL)
    stored = {}
    for name, array in list(floats.items()):
        if not name.endswith("proj.weight"):
            stored[name] = array
            continue
        parts, dense = pack(rng, *array.shape[::-1])
        floats[name] = np.ascontiguousarray(dense.T)
        stored |= {name.removesuffix("weight") + part: value for part, value in parts.items()}
    safetensors.numpy.save_file(floats, plain / MODEL)
    safetensors.numpy.save_file(stored, packed / MODEL)
    return packed, plain


MODEL = "model.safetensors"


def change_tensors(folder: Path, changes: dict[str, np.ndarray | None]) -> None:
    """Replace or add tensors of a folder; None removes one."""
    tensors = safetensors.numpy.load_file(folder / MODEL) | changes
    kept = {name: array for name, array in tensors.items() if array is not None}
    safetensors.numpy.save_file(kept, folder / MODEL)


def change_quantization(folder: Path, **changes) -> None:
    """Change keys of a folder's quantization_config."""
    facts = json.loads((folder / "config.json").read_text())
    facts["quantization_config"] |= changes
    (folder / "config.json").write_text(json.dumps(facts))
