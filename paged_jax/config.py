"""What the engine is told: the model's shape and the engine's settings, as frozen dataclasses.

Standard library only. `EngineArgs` is what a user may ask for (one field per command-line flag and
per `LLM(...)` keyword); `EngineConfig` is what runs, after the model's own limits are known. Dtypes
are strings.
"""

import os
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched. Names follow the Hugging Face `rope_parameters` block.

    Attributes:
        kind: one of "default", "linear", "dynamic", "yarn", "llama3".
        factor: length factor (all kinds but "default").
        original_max_position: context length before stretching (dynamic, yarn, llama3).
        low_freq_factor: llama3 only.
        high_freq_factor: llama3 only.
        beta_fast: yarn only.
        beta_slow: yarn only.
        attention_factor: yarn only; None derives it from `factor` (and `mscale`).
        mscale: yarn only.
        mscale_all_dim: yarn only.
        truncate: yarn only; round the correction range to whole dimensions.
        divisors: one per frequency, dividing it after the scaling (GGUF's `rope_freqs.weight`);
            None is all ones.
    """

    kind: Literal["default", "linear", "dynamic", "yarn", "llama3"] = "default"
    factor: float = 1.0
    original_max_position: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    divisors: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Quantisation:
    """How the layers' matrices are packed; embedding, head, norms and biases stay floats.

    Attributes:
        method: "gptq" and "awq" are read from checkpoints; "int8" is made at load.
        group_size: inputs that share a scale; None: all of them.
        zero_shift: by how much zero points are stored too low (GPTQ's first format: 1).
        needs_order: the checkpoint must say which group each input is in (GPTQ's `desc_act`).
    """

    method: Literal["awq", "gptq", "int8"]
    bits: int = 8
    group_size: int | None = None
    zero_shift: int = 0
    needs_order: bool = False


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder-only transformer; hashable, so that it can be a static argument of a
    jitted function.

    Attributes:
        family: "llama", "mistral", "qwen2" or "qwen3".
        max_position: longest context the checkpoint was made for, in tokens.
        rope_theta: base of the rotary frequencies.
        attention_bias: q, k and v projections have a bias.
        attention_out_bias: the output projection has a bias (Llama's `attention_bias`).
        mlp_bias: the MLP's projections have a bias.
        qk_norm: RMS norm on each query and key head (Qwen3).
        windows: per layer, how many tokens back a query sees, itself included; None sees
            everything.
        dtype: "float32", "bfloat16" or "float16": weights, and activations unless `is_packed`.
        is_packed: matrices are packed for the CPU kernels, and activations are float32.
        vocab_limit: ids at or above this are never sampled (padding rows of the embedding); None =
            vocab_size.
        eos_token_ids: ids that end generation unless `ignore_eos`.
        quantisation: how the layers' matrices are packed; None is not at all.
    """

    family: str
    vocab_size: int
    num_layers: int
    embed_dim: int
    mlp_dim: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling = RopeScaling()
    norm_eps: float = 1e-5
    tie_embeddings: bool = False
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()
    dtype: str = "float32"
    is_packed: bool = False
    vocab_limit: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    quantisation: Quantisation | None = None

    @property
    def context_limit(self) -> int:
        """Longest prompt plus answer in tokens: `max_position`, stretched by its scaling."""
        scaling = self.rope_scaling
        if scaling.kind in ("linear", "dynamic"):
            return int(self.max_position * scaling.factor)
        if scaling.kind == "yarn":
            original = scaling.original_max_position or self.max_position
            return max(self.max_position, int(original * scaling.factor))
        return self.max_position

    @property
    def activation_dtype(self) -> str:
        """The dtype of what flows from one operation to the next."""
        return "float32" if self.is_packed else self.dtype

    def window(self, layer: int) -> int | None:
        """Return the layer's attention window in tokens, or None."""
        return self.windows[layer] if self.windows else None


@dataclass(frozen=True)
class CacheConfig:
    """The KV pool.

    Attributes:
        num_blocks: the null block 0, which is never allocated, included.
        dtype: one of KV_CACHE_DTYPES; "auto" is the model's, "int8" and "fp8" have a scale for
            each token and head.
    """

    num_blocks: int
    block_size: int = 16
    prefix_caching: bool = True
    dtype: str = "auto"


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of one step and of one sequence.

    Attributes:
        max_seqs: sequences that may run at once.
        max_tokens_per_step: token budget of a step.
        max_model_len: longest prompt plus answer, in tokens.
        policy: "fcfs", or "priority" (lower priority value first, then arrival).
    """

    max_seqs: int
    max_tokens_per_step: int
    max_model_len: int
    policy: Literal["fcfs", "priority"] = "fcfs"


@dataclass(frozen=True)
class MeshShape:
    """How many devices an engine runs on, by what they divide among them.

    Attributes:
        data: replicas of the engine.
        stage: runs of layers.
        tensor: heads, MLP and vocabulary of every layer.
    """

    data: int = 1
    stage: int = 1
    tensor: int = 1

    @property
    def num_devices(self) -> int:
        """All of them."""
        return self.data * self.stage * self.tensor


@dataclass(frozen=True)
class EngineConfig:
    """Everything an engine needs to run, resolved.

    Attributes:
        model: as the devices of `mesh` hold it: at least one key/value head for each.
    """

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    model_name: str = ""
    seed: int = 0
    max_logprobs: int = 20
    enforce_eager: bool = False
    async_scheduling: bool = True
    mesh: MeshShape = MeshShape()


class OptionError(ValueError):
    """A setting is out of its range. The message names the flag and the remedy."""


class ModelError(ValueError):
    """A model's files cannot be used. The message names the file and the key or tensor at fault."""


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """Declare one user-facing setting with its legal range (inclusive)."""
    return field(
        default=default, metadata={"help": help, "low": low, "high": high, "choices": choices}
    )


GIB = 1 << 30
KV_CACHE_DTYPES = ("auto", "bfloat16", "float32", "int8", "fp8", "fp8_e4m3")


def cache_folder() -> Path:
    """Return the user's folder for what is kept between runs: the default model, programs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paged_jax"


@dataclass(frozen=True)
class EngineArgs:
    """What a user may ask of an engine; the names are vLLM's. Checked by `validate`.

    Every field is a keyword of `LLM(...)` and, with dashes, a flag of `python -m paged_jax.serve`.
    """

    model: str | None = option(
        None, "Hugging Face id, local folder, or .gguf file (default: SmolLM2-135M-Instruct)"
    )
    dtype: str = option(
        "auto",
        "weights and, but on a CPU with kernels, activations; auto: the checkpoint's own, on a CPU "
        "bfloat16 with kernels and float32 without",
        choices=("auto", "float32", "bfloat16", "float16", "half", "float"),
    )
    quantization: str | None = option(
        None,
        "awq or gptq: what the checkpoint is; int8: quantise floats at load (default: its own)",
        choices=("awq", "gptq", "int8"),
    )
    max_model_len: int | None = option(
        None, "longest prompt plus answer, in tokens (default: the model's)", low=1, high=10_000_000
    )
    block_size: int = option(16, "tokens per KV block", low=1, high=1024)
    max_num_seqs: int | None = option(
        None, "sequences that may run at once (default: 64, or the token budget)", low=1, high=4096
    )
    max_num_batched_tokens: int = option(512, "token budget of one step", low=1, high=131_072)
    tensor_parallel_size: int = option(
        1, "devices that divide every layer among them", low=1, high=1024
    )
    gpu_memory_utilization: float = option(
        0.92, "share of a GPU's memory to use", low=0.01, high=1.0
    )
    kv_cache_memory: int | None = option(
        None,
        "bytes for the KV pool on each device (default: 1 GiB on a CPU, what is left on a GPU)",
        low=1,
        high=1 << 50,
    )
    kv_cache_dtype: str = option(
        "auto",
        "KV pool; auto: as --dtype; int8 and fp8 (e4m3): with a scale for each token and head",
        choices=KV_CACHE_DTYPES,
    )
    num_gpu_blocks_override: int | None = option(
        None, "number of KV blocks, instead of measuring", low=2, high=1 << 31
    )
    enable_prefix_caching: bool = option(True, "reuse KV blocks of equal prefixes")
    scheduling_policy: str = option(
        "fcfs", "order of waiting requests", choices=("fcfs", "priority")
    )
    async_scheduling: bool = option(
        True, "prepare a step, and deliver the one before it, while the device computes"
    )
    enforce_eager: bool = option(False, "run the steps without jit, for debugging")
    seed: int = option(
        0, "seed of the random weights of --load-format dummy", low=0, high=(1 << 63) - 1
    )
    load_format: str = option(
        "auto", "auto, or dummy for random weights", choices=("auto", "dummy")
    )
    max_logprobs: int = option(20, "largest number of alternatives per token", low=0, high=1024)
    disable_log_stats: bool = option(False, "no periodic log line")

    def validate(self) -> "EngineArgs":
        """Return self if every setting is in its range.

        Raises:
            OptionError: names the flag, its legal range and the value given.
        """
        for spec in fields(self):
            check_option(spec.name, getattr(self, spec.name))
        return self

    @classmethod
    def of(cls, **options: Any) -> "EngineArgs":
        """Build from keywords; an unknown one raises OptionError."""
        known = {spec.name for spec in fields(cls)}
        for name in options:
            if name not in known:
                raise OptionError(
                    f"unknown option {name}; the options are {', '.join(sorted(known))}"
                )
        return cls(**options).validate()


def check_option(name: str, value: Any) -> None:
    """Raise OptionError if `value` is not legal for the setting `name` of EngineArgs."""
    spec = next(spec for spec in fields(EngineArgs) if spec.name == name)
    flag, kind = "--" + name.replace("_", "-"), option_kind(spec)
    if value is None and spec.default is None:
        return
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise OptionError(f"{flag} must be of type {kind.__name__}, not {value!r}")
    low, high, choices = (spec.metadata[key] for key in ("low", "high", "choices"))
    if choices and value not in choices:
        raise OptionError(f"{flag} must be one of {', '.join(choices)}, not {value!r}")
    if low is not None and not low <= value <= high:
        raise OptionError(f"{flag} must be between {low} and {high}, not {value}")


def option_kind(spec: Any) -> type:
    """Return the plain type of a setting of EngineArgs, without its `| None`."""
    default: object = spec.default
    if default is not None and default is not MISSING:
        return type(default)
    return int if spec.metadata["low"] is not None else str
