"""Where a model comes from: a folder, a GGUF file, a Hugging Face id, or the default model.

A folder holds safetensors, or an Orbax checkpoint that `python -m paged_jax.convert` wrote.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paged_jax.config import ModelError
from paged_jax.weights.default_model import NAME, default_model_path

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
MANIFEST = "orbax_checkpoint.json"  # names the arrays of a folder that was converted
DESCRIPTIONS = ("*.json", "*.jinja", "*.model", "*.txt")


@dataclass(frozen=True)
class ModelSource:
    """A model's files on this machine; `name` is what the user calls it."""

    kind: Literal["folder", "gguf", "orbax"]
    path: Path
    name: str


def resolve_model(model: str | None, *, with_weights: bool = True) -> ModelSource:
    """Find a model's files, downloading them if `model` is a Hugging Face id.

    Args:
        model: None is the default model.
        with_weights: False downloads only the descriptions.
    Raises:
        ModelError: there is no such model, or it cannot be downloaded.
    """
    if model is None:
        return ModelSource("gguf", default_model_path(), NAME)
    path = Path(model).expanduser()
    if path.is_file():
        return _file(path, model)
    if path.is_dir():
        return _folder(path, model)
    if not HUB_ID.fullmatch(model) or model.endswith(".gguf"):
        raise ModelError(f"there is no model folder or .gguf file at {model}")
    return _folder(_download(model, with_weights), model)


def _file(path: Path, model: str) -> ModelSource:
    if path.suffix != ".gguf":
        raise ModelError(
            f"{model} is not a model: give a folder, a .gguf file, or a Hugging Face id"
        )
    return ModelSource("gguf", path, model)


def _folder(path: Path, model: str) -> ModelSource:
    is_ours = (path / MANIFEST).is_file()
    if not is_ours and any(path.glob("**/_CHECKPOINT_METADATA")):
        raise ModelError(
            f"{model} is an Orbax checkpoint without {MANIFEST}, so it was not written by "
            "python -m paged_jax.convert: convert the model's safetensors folder or .gguf file"
        )
    if not (path / "config.json").is_file():
        raise ModelError(f"{model} has no config.json, so it is not a model this engine can read")
    return ModelSource("orbax" if is_ours else "folder", path, model)


def _download(model: str, with_weights: bool) -> Path:
    """Fetch a snapshot into Hugging Face's cache, with its own progress bar."""
    from huggingface_hub import snapshot_download

    patterns = [*DESCRIPTIONS, *(["*.safetensors"] if with_weights else [])]
    try:
        return Path(snapshot_download(model, allow_patterns=patterns))
    except Exception as error:  # the hub's client lets its transport's many errors through
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ModelError(
            f"{model} is no local folder and could not be downloaded from Hugging Face: {reason}"
        ) from error
