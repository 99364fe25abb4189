"""python -m paged_jax.convert MODEL OUT: write a model as a sharded Orbax checkpoint.

What is written is neutral: transformers' names, matrices as [out, in], no padding, no packing. So
it loads on any machine and into any mesh, where each host reads only what its own devices hold.
Packed matrices of GPTQ and AWQ stay packed; those of GGUF files are dequantised. int8 is made at
load, by `--quantization int8`.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paged_jax.config import ModelConfig, ModelError
from paged_jax.engine_args import EngineArgs
from paged_jax.models.hf_config import config_json
from paged_jax.text.tokenizer import Tokenizer
from paged_jax.weights.load import open_checkpoint, read_config
from paged_jax.weights.orbax_writer import read_tensors, write_checkpoint
from paged_jax.weights.source import DESCRIPTIONS, resolve_model

INDEX = "model.safetensors.index.json"
TEMPLATES = "additional_chat_templates"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code: 1 for a model that cannot be converted."""
    options = _parser().parse_args(argv)
    try:
        convert(options.model, Path(options.out), dtype=options.dtype)
    except (ModelError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    print(f"Wrote {options.out}; serve it: python -m paged_jax.serve --model {options.out}")
    return 0


def convert(model: str | None, out: Path, *, dtype: str = "auto") -> None:
    """Write a model's arrays, configuration and tokenizer into the new folder `out`, or nothing.

    All tensors are in memory meanwhile.

    Args:
        model: as `--model`; None is the default model.
        dtype: of all floats but the scales of packed matrices; "auto" is the model's own.
    Raises:
        ModelError: `out` exists, or the model cannot be read or described.
    """
    out = out.expanduser()
    if out.exists():
        raise ModelError(f"{out} exists already: choose a new folder, or remove it first")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        made = Path(folder) / out.name
        made.mkdir()
        _fill(made, model, dtype)
        made.rename(out)


def _fill(folder: Path, model: str | None, dtype: str) -> None:
    source = resolve_model(model)
    own_dtype = "" if dtype == "auto" else dtype
    config = replace(read_config(source, dtype=own_dtype), is_packed=False)
    if source.kind == "gguf":
        (folder / "config.json").write_text(json.dumps(config_json(config, where=str(source.path))))
        Tokenizer.from_gguf(source.path).save(folder)
    else:
        _copy_descriptions(source.path, folder, config)
    checkpoint, matrices = open_checkpoint(source, config)
    write_checkpoint(folder, dict(read_tensors(checkpoint, config, matrices)))


def _copy_descriptions(source: Path, folder: Path, config: ModelConfig) -> None:
    """Copy everything beside the weights; config.json tells the dtype written."""
    files = {path for pattern in DESCRIPTIONS for path in source.glob(pattern)}
    for path in files:
        if path.name != INDEX:
            shutil.copyfile(path, folder / path.name)
    if (source / TEMPLATES).is_dir():
        shutil.copytree(source / TEMPLATES, folder / TEMPLATES)
    facts = json.loads((source / "config.json").read_text("utf-8"))
    facts |= {"dtype": config.dtype, "torch_dtype": config.dtype}
    (folder / "config.json").write_text(json.dumps(facts, indent=1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.convert",
        description="Write a model as a sharded Orbax checkpoint, which --model then takes.",
        allow_abbrev=False,
    )
    dtypes = EngineArgs.__dataclass_fields__["dtype"].metadata["choices"]
    parser.add_argument("model", metavar="MODEL", help="Hugging Face id, local folder, .gguf file")
    parser.add_argument("out", metavar="OUT", help="the folder to make")
    parser.add_argument(
        "--dtype", choices=dtypes, default="auto", help="of the floats (default: the model's own)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
