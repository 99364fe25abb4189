"""What an engine runs with: the model's shape and the resolved settings, as frozen dataclasses.

Standard library only. `engine_args` has what a user may ask for; `EngineConfig` is what runs, after
the model's own limits are known. Dtypes are strings.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

GIB = 1 << 30


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
class AttentionMods:
    """Attention as a function, in FlexAttention's way; compiled into every step.

    The functions are traced: they take whole arrays of numbers that broadcast together, and work on
    each number by itself. Positions count from a sequence's first token, heads are query heads.

    Attributes:
        score_mod: from score, q_pos, k_pos, head to the score: after scaling, before softmax.
        mask_mod: from q_pos, k_pos, head to whether a query sees a key, of those before it.
        bidirectional: the first so many tokens of a sequence see each other.
    """

    score_mod: Callable[..., object] | None = None
    mask_mod: Callable[..., object] | None = None
    bidirectional: int = 0

    @property
    def has_any(self) -> bool:
        """Whether attention is any other than the model's own."""
        return bool(self.score_mod or self.mask_mod or self.bidirectional)


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
        mods: the user's own attention; None is the model's.
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
    mods: AttentionMods | None = None

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
        partial_reuse: a block of which only the first tokens are wanted is copied for them.
    """

    num_blocks: int
    block_size: int = 16
    prefix_caching: bool = True
    dtype: str = "auto"
    partial_reuse: bool = False


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of one step and of one sequence.

    Attributes:
        max_seqs: sequences that may run at once.
        max_tokens_per_step: token budget of a step.
        max_model_len: longest prompt plus answer, in tokens.
        policy: order of service, a name in `host.policies` or "module:Class".
        first_chunk: tokens of a sequence that its first step computes at least.
    """

    max_seqs: int
    max_tokens_per_step: int
    max_model_len: int
    policy: str = "fcfs"
    first_chunk: int = 1


@dataclass(frozen=True)
class MeshShape:
    """How many devices an engine runs on, by what they divide among them.

    Attributes:
        data: replicas of the engine.
        stage: runs of layers.
        tensor: heads, MLP and vocabulary of every layer.
        replica: which of the `data` replicas this engine is; the others have engines of their own.
    """

    data: int = 1
    stage: int = 1
    tensor: int = 1
    replica: int = 0

    @property
    def num_devices(self) -> int:
        """Those of all replicas."""
        return self.data * self.stage * self.tensor


@dataclass(frozen=True)
class EngineConfig:
    """Everything an engine needs to run, resolved.

    Attributes:
        model: as the devices of `mesh` hold it: at least one key/value head for each.
        record: file to write the run to, if any.
        batch_invariant: each token is computed in one order, by one program a kind, whatever else
            is computed beside it; see `batch_invariance`.
        has_taps: requests may read and change what is in the layers.
    """

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    model_name: str = ""
    seed: int = 0
    max_logprobs: int = 20
    logprobs_mode: str = "raw_logprobs"
    enforce_eager: bool = False
    async_scheduling: bool = True
    mesh: MeshShape = MeshShape()
    record: str | None = None
    batch_invariant: bool = False
    has_taps: bool = False


class OptionError(ValueError):
    """A setting is out of its range. The message names the flag and the remedy."""


class ModelError(ValueError):
    """A model's files cannot be used. The message names the file and the key or tensor at fault."""


def cache_folder() -> Path:
    """Return the user's folder for what is kept between runs: the default model, programs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paged_jax"
