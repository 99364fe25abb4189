"""A model from its source: configuration (cheap), parameters, and its own sampling defaults."""

import json
from dataclasses import replace
from pathlib import Path

import jax
from jax.sharding import Mesh

from paged_jax.config import ModelConfig, ModelError, OptionError, Quantisation
from paged_jax.device.cpu import kernels
from paged_jax.device.cpu.matmul import DTYPES
from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.models.families import Description, config_from_hf
from paged_jax.models.layout import WeightLayout
from paged_jax.models.params import ModelParams
from paged_jax.models.quantisation import quantisation_from_hf
from paged_jax.weights.checkpoint import Checkpoint
from paged_jax.weights.dummy import dummy_params
from paged_jax.weights.fill import fill_params
from paged_jax.weights.gguf_reader import GGUFFile, gguf_config, read_gguf
from paged_jax.weights.matrices import Int8Matrices, MatrixReader, PackedMatrices, PlainMatrices
from paged_jax.weights.orbax_folder import OrbaxFolder
from paged_jax.weights.safetensors_reader import SafetensorsFolder
from paged_jax.weights.source import ModelSource

OLD_GPTQ = "quantize_config.json"
SHORT_DTYPES = {"half": "float16", "float": "float32"}
SAMPLING_KEYS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def read_config(
    source: ModelSource,
    *,
    dtype: str = "auto",
    quantization: str | None = None,
    is_divided: bool = False,
) -> ModelConfig:
    """Read a model's shape, before and without its weights.

    Args:
        dtype: "auto" is bfloat16 on a CPU with kernels, float32 on one without, and elsewhere the
            checkpoint's own (bfloat16 for GGUF).
        quantization: "awq" or "gptq" is what the checkpoint must be; "int8" quantises floats.
        is_divided: for several devices, where the CPU's kernels are not used.
    Raises:
        ModelError: the description is missing, malformed, or of a model that is not supported.
        OptionError: `quantization` contradicts the checkpoint.
    """
    has_kernels = not is_divided and kernels.are_usable()
    config = _read_config(source, _resolve_dtype(dtype, has_kernels), quantization)
    return replace(config, is_packed=has_kernels and config.dtype in DTYPES)


def _read_config(source: ModelSource, wanted: str, quantization: str | None) -> ModelConfig:
    if source.kind == "gguf":
        config = gguf_config(source.path, read_gguf(source.path), dtype=wanted)
        return replace(config, quantisation=_quantisation(source, quantization, None))
    path = source.path / "config.json"
    facts = _read_json(path)
    config = config_from_hf(facts, _generation(source), where=str(path), dtype=wanted)
    stored = _stored_quantisation(source, Description(facts, str(path)))
    return replace(config, quantisation=_quantisation(source, quantization, stored))


def load_params(
    source: ModelSource,
    config: ModelConfig,
    *,
    load_format: str = "auto",
    seed: int = 0,
    progress: bool = True,
    mesh: Mesh | None = None,
) -> ModelParams:
    """Read a model's weights in `config.dtype`, each straight to the devices that hold it.

    Args:
        mesh: divides them among its devices; None puts all on the default device.
        load_format: "dummy" makes random weights from `seed` and reads none.
    Raises:
        ModelError: names the file and the tensor that is missing, misshapen, or not finite.
    """
    layout = WeightLayout(config, mesh)
    if load_format == "dummy":
        return dummy_params(config, seed, layout)
    checkpoint, matrices = open_checkpoint(source, config)
    return fill_params(checkpoint, layout, matrices, progress=progress)


def open_checkpoint(source: ModelSource, config: ModelConfig) -> tuple[Checkpoint, MatrixReader]:
    """Return the tensors of a source, and what makes matrices of them.

    Raises:
        ModelError: files are missing or damaged.
    """
    scheme = config.quantisation
    if source.kind == "gguf":
        checkpoint = GGUFFile(source.path, read_gguf(source.path), config)
    else:
        folder = OrbaxFolder if source.kind == "orbax" else SafetensorsFolder
        checkpoint = folder(source.path, is_tied=config.tie_embeddings)
        if scheme is not None and scheme.method != "int8":
            return checkpoint, PackedMatrices(checkpoint, config.dtype, scheme)
    if scheme is None:
        return checkpoint, PlainMatrices(checkpoint, config.dtype)
    return checkpoint, Int8Matrices(checkpoint)


def default_sampling(source: ModelSource) -> dict[str, object]:
    """Return the SamplingParams fields that generation_config.json sets; none for a GGUF file.

    Raises:
        ModelError: a value is out of its range.
    """
    facts = {} if source.kind == "gguf" else _generation(source)
    given = {
        field: facts[key] for key, field in SAMPLING_KEYS.items() if facts.get(key) is not None
    }
    try:
        SamplingParams(**given)  # pyright: ignore[reportArgumentType]
    except InvalidRequest as error:
        raise ModelError(f"{source.path / 'generation_config.json'}: {error}") from error
    return given


def _stored_quantisation(source: ModelSource, about: Description) -> Quantisation | None:
    """How the folder's matrices are packed, by config.json or an older folder's own file."""
    if about.facts.get("quantization_config") is not None:
        return quantisation_from_hf(about.part("quantization_config"))
    path = source.path / OLD_GPTQ
    if not path.exists():
        return None
    return quantisation_from_hf(Description({"quant_method": "gptq"} | _read_json(path), str(path)))


def _quantisation(
    source: ModelSource, wanted: str | None, stored: Quantisation | None
) -> Quantisation | None:
    """What runs: what is stored, or int8 out of floats."""
    if wanted == "int8" and stored is None:
        return Quantisation("int8")
    if wanted is not None and wanted != (stored and stored.method):
        actual = "of floats" if stored is None else f"packed by {stored.method}"
        raise OptionError(
            f"--quantization {wanted} does not fit {source.name}, which is {actual}: "
            f"leave it out{' or choose int8' if stored is None else ''}"
        )
    return stored


def _resolve_dtype(dtype: str, has_kernels: bool) -> str:
    """The dtype to run in; "" stands for the checkpoint's own."""
    if dtype == "auto":
        on_cpu = "bfloat16" if has_kernels else "float32"
        return on_cpu if jax.default_backend() == "cpu" else ""
    return SHORT_DTYPES.get(dtype, dtype)


def _generation(source: ModelSource) -> dict[str, object]:
    path = source.path / "generation_config.json"
    return _read_json(path) if path.exists() else {}


def _read_json(path: Path) -> dict[str, object]:
    try:
        facts = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(facts, dict):
        raise ModelError(f"{path} must hold a JSON object, not {type(facts).__name__}")
    return facts
