"""Writes a model's tensors as an Orbax checkpoint, with the manifest that `orbax_folder` reads."""

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from tqdm import tqdm

from paged_jax.config import ModelConfig
from paged_jax.device.sharding import whole
from paged_jax.models.params import abstract_params
from paged_jax.weights.checkpoint import Checkpoint, PackedCheckpoint, read_floats
from paged_jax.weights.fill import Parameter, check_names
from paged_jax.weights.matrices import MatrixReader
from paged_jax.weights.orbax_folder import ARRAYS, FORMAT, VERSION, StoredTensor, array_spec
from paged_jax.weights.safetensors_reader import name_of
from paged_jax.weights.source import MANIFEST

PIECE_BYTES = 4 << 20  # Orbax cuts arrays evenly into pieces no larger


def read_tensors(
    checkpoint: PackedCheckpoint | Checkpoint, config: ModelConfig, matrices: MatrixReader
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every tensor the model needs under transformers' name: floats of `config.dtype` as
    [out, in], and packed matrices as they are stored.

    Raises:
        ModelError: a tensor is missing, of another shape or type, or not finite.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(abstract_params(config))
    wanted = [Parameter.at(path, leaf, checkpoint) for path, leaf in leaves]
    check_names(checkpoint, [name for item in wanted for name in item.parts(matrices)])
    for item in tqdm(wanted, "Reading weights", disable=None):
        parts = item.parts(matrices)
        if parts == [item.name]:
            is_turned = item.is_packable or item.field == "unembed"
            shape = item.leaf.shape[::-1] if is_turned else item.leaf.shape
            floats = read_floats(checkpoint, item.name, shape, config.dtype)
            yield name_of(item.field, item.layer), floats
        else:
            yield from ((part, _packed_part(checkpoint, part)) for part in parts)


def _packed_part(checkpoint: PackedCheckpoint | Checkpoint, name: str) -> np.ndarray:
    """One of the tensors a packed matrix is made of: scales are floats, the rest integers."""
    shape = checkpoint.shape(name)
    if name.endswith("scales"):
        return read_floats(checkpoint, name, shape)
    assert hasattr(checkpoint, "read_integers"), "a format without packed matrices"
    return checkpoint.read_integers(name)  # pyright: ignore[reportAttributeAccessIssue]


def write_checkpoint(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write arrays and manifest into an existing folder."""
    path = folder.resolve() / ARRAYS
    cut = ocp.SaveArgs(chunk_byte_size=PIECE_BYTES)
    arguments = ocp.args.PyTreeSave(dict(tensors), save_args=dict.fromkeys(tensors, cut))
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=False)) as checkpointer:
        checkpointer.save(path, args=arguments)
    context = tensorstore.Context()
    entries = {name: _entry(path, name, array, context) for name, array in tensors.items()}
    manifest = {"format": FORMAT, "version": VERSION, "tensors": entries}
    (folder / MANIFEST).write_text(json.dumps(manifest), "utf-8")


def _entry(
    path: Path, name: str, array: np.ndarray, context: tensorstore.Context
) -> dict[str, object]:
    """What the manifest says of a tensor, cut as Orbax has cut it."""
    spec = array_spec(path, name)
    store = tensorstore.open(spec, read=True, open=True, context=context).result()
    sizes = store.chunk_layout.read_chunk.shape or ()
    piece = tuple(part or size for part, size in zip(sizes, array.shape, strict=True))
    tensor = StoredTensor(array.shape, array.dtype.name, piece, ())
    checksums = [
        zlib.crc32(np.ascontiguousarray(array[place]).view(np.uint8).data)
        for _, place in tensor.pieces(whole(array.shape))
    ]
    return {
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "piece": list(tensor.piece),
        "crc32": checksums,
    }
