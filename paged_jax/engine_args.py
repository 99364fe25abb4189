"""What a user may ask of an engine: one field per command-line flag and per `LLM(...)` keyword.

Standard library only.
"""

from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from paged_jax.config import OptionError

POLICIES = ("fcfs", "priority", "shortest", "fair", "prefix", "MODULE:CLASS")
LOGPROBS_MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")
KV_CACHE_DTYPES = ("auto", "bfloat16", "float32", "int8", "fp8", "fp8_e4m3")


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
    pipeline_parallel_size: int = option(
        1, "runs of layers, each on devices of its own", low=1, high=1024
    )
    data_parallel_size: int = option(
        1, "replicas of the engine behind one queue, each on devices of its own", low=1, high=1024
    )
    nnodes: int = option(1, "hosts that share the model, one process on each", low=1, high=1024)
    node_rank: int = option(0, "which of them this is; 0 serves", low=0, high=1023)
    master_addr: str = option("127.0.0.1", "address of host 0, which the others connect to")
    master_port: int = option(29501, "its port; the next one is used too", low=1, high=65_534)
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
    enable_partial_prefix_caching: bool = option(
        False, "where a block agrees with the prompt only in part, copy it for that part"
    )
    scheduling_policy: str = option(
        "fcfs", "order of service; MODULE:CLASS is one of your own", choices=POLICIES
    )
    async_scheduling: bool = option(
        True, "prepare a step, and deliver the one before it, while the device computes"
    )
    batch_invariant: bool = option(
        False,
        "tokens and log-probabilities equal bit for bit whatever the batch, chunks, cache hits and "
        "preemptions; on one CPU with kernels, slower",
    )
    enforce_eager: bool = option(False, "run the steps without jit, for debugging")
    seed: int = option(
        0, "seed of the random weights of --load-format dummy", low=0, high=(1 << 63) - 1
    )
    load_format: str = option(
        "auto", "auto, or dummy for random weights", choices=("auto", "dummy")
    )
    max_logprobs: int = option(20, "largest number of alternatives per token", low=0, high=1024)
    logprobs_mode: str = option(
        "raw_logprobs",
        "what is told as log-probabilities: the model's own, or those that tokens are drawn from",
        choices=LOGPROBS_MODES,
    )
    record: str | None = option(
        None,
        "file to write what arrives, is scheduled and is drawn to, as JSON lines, for a replay",
    )
    enable_taps: bool = option(
        False,
        "let requests read and change what is in the layers; compiles the layers a second time",
    )
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
    is_own = "MODULE:CLASS" in (choices or ()) and ":" in str(value)
    if choices and value not in choices and not is_own:
        raise OptionError(f"{flag} must be one of {', '.join(choices)}, not {value!r}")
    if low is not None and not low <= value <= high:
        raise OptionError(f"{flag} must be between {low} and {high}, not {value}")


def option_kind(spec: Any) -> type:
    """Return the plain type of a setting of EngineArgs, without its `| None`."""
    default: object = spec.default
    if default is not None and default is not MISSING:
        return type(default)
    return int if spec.metadata["low"] is not None else str
