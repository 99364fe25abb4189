"""Weights of a GGUF file, dequantised tensor by tensor.

"llama" files keep the rows of q and k in the rotary order of the original code, pairs side by side;
they are put back into halves. Qwen files are not permuted.
"""

from collections.abc import Collection
from pathlib import Path

import gguf.quants
import ml_dtypes
import numpy as np

from paged_jax.config import ModelConfig, ModelError
from paged_jax.device.sharding import Part
from paged_jax.gguf_header import GGUFHeader, TensorInfo, read_header
from paged_jax.models.gguf_families import config_from_gguf

BLOCKS_AT_ONCE = 1 << 17
PLAIN = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
ROPE_DIVISORS = "rope_freqs.weight"
WHOLE = {
    "embed": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "unembed": "output.weight",
}
OF_LAYER = {
    "attn_norm": "attn_norm.weight",
    "w_q": "attn_q.weight",
    "w_k": "attn_k.weight",
    "w_v": "attn_v.weight",
    "w_o": "attn_output.weight",
    "b_q": "attn_q.bias",
    "b_k": "attn_k.bias",
    "b_v": "attn_v.bias",
    "b_o": "attn_output.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "w_gate": "ffn_gate.weight",
    "w_up": "ffn_up.weight",
    "w_down": "ffn_down.weight",
    "b_gate": "ffn_gate.bias",
    "b_up": "ffn_up.bias",
    "b_down": "ffn_down.bias",
}


class GGUFFile:
    """The tensors of a file, in transformers' row order."""

    def __init__(self, path: Path, header: GGUFHeader, config: ModelConfig):
        self._path, self._tensors, self._config = path, header.tensors, config
        self._data = np.memmap(path, mode="r")

    @property
    def names(self) -> Collection[str]:
        """Every tensor stored."""
        return self._tensors.keys()

    def name_of(self, weight: str, layer: int | None) -> str:
        """Return the name GGUF gives to a weight."""
        return WHOLE[weight] if layer is None else f"blk.{layer}.{OF_LAYER[weight]}"

    @property
    def reads_parts(self) -> bool:
        """Whether parts cost less than the whole: not so: a tensor is dequantised as a whole."""
        return False

    def is_harmless(self, name: str) -> bool:
        """Whether the tensor is the rotary divisors, which are part of the configuration."""
        return name == ROPE_DIVISORS

    def where(self, name: str) -> str:
        """Return the file's path."""
        return str(self._path)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it."""
        return self._tensors[name].shape

    def read(self, name: str, part: Part) -> np.ndarray:
        """Return part of a tensor, dequantised as a whole; rows of q and k in halves."""
        array = dequantise(self._data, self._tensors[name])
        heads = self._permuted_heads(name)
        return (array if heads is None else _rows_in_halves(array, heads))[part]

    def _permuted_heads(self, name: str) -> int | None:
        """How many heads' rows of this tensor are stored in pairs; None if its order is plain."""
        stem = name.split(".")[-2]
        if self._config.family != "llama" or stem not in ("attn_q", "attn_k"):
            return None
        return self._config.num_q_heads if stem == "attn_q" else self._config.num_kv_heads


def read_gguf(path: Path) -> GGUFHeader:
    """Read a file's header.

    Raises:
        ModelError: it is damaged, or one part of a file that was split.
    """
    header = read_header(path)
    if header.metadata.get("split.count") not in (None, 0, 1):
        raise ModelError(f"{path} is one part of a split GGUF file: join the parts first")
    return header


def gguf_config(path: Path, header: GGUFHeader, *, dtype: str) -> ModelConfig:
    """Return the model's shape, the rotary divisors included."""
    divisors = None
    if ROPE_DIVISORS in header.tensors:
        values = dequantise(np.memmap(path, mode="r"), header.tensors[ROPE_DIVISORS])
        divisors = values.astype(np.float64).ravel().tolist()
        if not all(0 < value < np.inf for value in divisors):
            raise ModelError(f"{path}: tensor {ROPE_DIVISORS} must hold positive numbers")
    return config_from_gguf(
        header.metadata, header.tensors, where=str(path), dtype=dtype, rope_divisors=divisors
    )


def dequantise(data: np.ndarray, info: TensorInfo) -> np.ndarray:
    """Return a copy of one tensor of a file's bytes; quantised types become float32."""
    raw = data[info.offset : info.offset + info.num_bytes]
    if info.type.name in PLAIN:
        return np.array(raw).view(PLAIN[info.type.name]).reshape(info.shape)
    decode = getattr(gguf.quants, info.type.name).dequantize_blocks
    blocks = np.asarray(raw).reshape(-1, info.type.block_bytes)
    out = np.empty((len(blocks), info.type.block_len), np.float32)
    for start in range(0, len(blocks), BLOCKS_AT_ONCE):
        part = slice(start, start + BLOCKS_AT_ONCE)
        out[part] = decode(blocks[part])
    return out.reshape(info.shape)


def _rows_in_halves(array: np.ndarray, heads: int) -> np.ndarray:
    """Undo the pairing of rows: within each head, even rows first, then odd ones."""
    pairs = array.reshape(heads, -1, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)
