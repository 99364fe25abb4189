"""Weights of a Hugging Face folder: model.safetensors, or the shards its index lists."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from paged_jax.config import ModelError
from paged_jax.device.sharding import Part, whole

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = ("F32", "F16", "BF16")
INTEGERS = ("I32",)
HARMLESS = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
WHOLE = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "unembed": "lm_head.weight",
}
OF_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "w_q": "self_attn.q_proj.weight",
    "w_k": "self_attn.k_proj.weight",
    "w_v": "self_attn.v_proj.weight",
    "w_o": "self_attn.o_proj.weight",
    "b_q": "self_attn.q_proj.bias",
    "b_k": "self_attn.k_proj.bias",
    "b_v": "self_attn.v_proj.bias",
    "b_o": "self_attn.o_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "w_gate": "mlp.gate_proj.weight",
    "w_up": "mlp.up_proj.weight",
    "w_down": "mlp.down_proj.weight",
    "b_gate": "mlp.gate_proj.bias",
    "b_up": "mlp.up_proj.bias",
    "b_down": "mlp.down_proj.bias",
}


def name_of(weight: str, layer: int | None) -> str:
    """Return the name transformers gives to a field of ModelParams or LayerParams."""
    return WHOLE[weight] if layer is None else f"model.layers.{layer}.{OF_LAYER[weight]}"


class SafetensorsFolder:
    """The tensors of a folder, read one at a time.

    Raises ModelError when a file is missing, unreadable, or named outside the folder.
    """

    def __init__(self, folder: Path, *, is_tied: bool):
        self._folder, self._is_tied = folder, is_tied
        self._file_of = _files(folder)
        self._open = {name: _open(folder / name) for name in sorted(set(self._file_of.values()))}
        stored = {name: set(file.keys()) for name, file in self._open.items()}
        for tensor, name in self._file_of.items():
            if tensor not in stored[name]:
                raise ModelError(
                    f"{folder / name}: tensor {tensor} is missing, though {INDEX} lists it"
                )

    @property
    def names(self) -> set[str]:
        """Every tensor stored."""
        return set(self._file_of)

    def name_of(self, weight: str, layer: int | None) -> str:
        """Return the name transformers gives to a weight."""
        return name_of(weight, layer)

    @property
    def reads_parts(self) -> bool:
        """Whether parts cost less than the whole: so."""
        return True

    def is_harmless(self, name: str) -> bool:
        """Whether it is a rotary table, a tied model's head, or the empty bias of a packed matrix.

        Older packers give every packed matrix a bias, which is 0 where the model has none.
        """
        if name.endswith(HARMLESS) or (self._is_tied and name == WHOLE["unembed"]):
            return True
        is_packed = name.removesuffix("bias") + "qweight" in self._file_of
        if not is_packed or not name.endswith(".bias"):
            return False
        return not self.read(name, whole(self.shape(name))).any()

    def where(self, name: str) -> str:
        """Return the shard that holds a tensor; the folder for one that is not there."""
        return str(self._folder / self._file_of.get(name, ""))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it."""
        return tuple(self._slice(name).get_shape())

    def read(self, name: str, part: Part) -> np.ndarray:
        """Return part of a tensor as stored.

        Raises:
            ModelError: it is of another type than float32, float16 and bfloat16.
        """
        return self._read(name, part, DTYPES)

    def read_integers(self, name: str) -> np.ndarray:
        """Return a tensor of int32.

        Raises:
            ModelError: it is of another type.
        """
        return self._read(name, whole(self.shape(name)), INTEGERS)

    def _read(self, name: str, part: Part, dtypes: tuple[str, ...]) -> np.ndarray:
        dtype = self._slice(name).get_dtype()
        if dtype not in dtypes:
            known = ", ".join(dtypes)
            raise ModelError(f"{self.where(name)}: tensor {name} has type {dtype}, not {known}")
        if part == whole(self.shape(name)):
            return self._open[self._file_of[name]].get_tensor(name)
        return self._slice(name)[part]

    def _slice(self, name: str):
        return self._open[self._file_of[name]].get_slice(name)


def _files(folder: Path) -> Mapping[str, str]:
    """Return the file name of each tensor."""
    if (folder / SINGLE).is_file():
        return dict.fromkeys(_open(folder / SINGLE).keys(), SINGLE)
    if (folder / INDEX).is_file():
        return _weight_map(folder / INDEX)
    hint = ""
    if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
        hint = "; pickled weights can run code and are never opened: convert them"
    raise ModelError(f"{folder}: neither {SINGLE} nor {INDEX} is there{hint}")


def _weight_map(path: Path) -> Mapping[str, str]:
    """Read the index of a sharded checkpoint; shards lie beside it."""
    try:
        files = json.loads(path.read_text("utf-8"))["weight_map"]
        pairs = {str(tensor): str(name) for tensor, name in files.items()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: weight_map cannot be read: {error!r}") from error
    for name in set(pairs.values()):
        if name in ("", ".", "..") or "/" in name or "\\" in name:
            raise ModelError(f"{path}: {name!r} is not the plain name of a file in the folder")
        if not (path.parent / name).is_file():
            raise ModelError(f"{path}: the shard {name} is missing")
    return pairs


def _open(path: Path):
    try:
        return safe_open(path, "numpy")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read as safetensors: {error}") from error
