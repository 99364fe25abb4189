"""From a checkpoint's own description to a ModelConfig: Hugging Face's config.json.

Defaults of absent keys are those of transformers. What this engine does not compute is refused.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

from paged_jax.config import ModelConfig, ModelError, RopeScaling

Facts = Mapping[str, object]

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "llama3")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Description:
    """The keys of one JSON file or metadata block; a bad value is an error that names both."""

    facts: Facts
    where: str

    def error(self, key: str, expected: str) -> ModelError:
        """Return the error for a key whose value is not what is expected."""
        shown = repr(self.facts[key])[:80] if key in self.facts else "absent"
        return ModelError(f"{self.where}: {key} must be {expected}, not {shown}")

    def text(self, key: str, default: str = "") -> str:
        """Return a string; null reads as absent."""
        value = self._given(key, default)
        if not isinstance(value, str):
            raise self.error(key, "a string")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a boolean; null reads as absent."""
        value = self._given(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """Return a positive whole number; without a default the key is required."""
        value = self._given(key, default)
        if type(value) is not int or not 0 < value < 1 << 31:
            raise self.error(key, "a positive whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive finite number; without a default the key is required."""
        value = self._given(key, default)
        if type(value) not in (int, float) or not 0 < cast(float, value) < math.inf:
            raise self.error(key, "a positive number")
        return float(cast(float, value))

    def optional_number(self, key: str) -> float | None:
        """Return a positive finite number, or None when absent or null."""
        return None if self.facts.get(key) is None else self.number(key)

    def ids(self, key: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Return token ids, given as one or as a list; null reads as none."""
        value = self.facts.get(key, default)
        listed = value if isinstance(value, list | tuple) else [] if value is None else [value]
        if not all(type(token) is int and token >= 0 for token in listed):
            raise self.error(key, "a token id or a list of them")
        return tuple(dict.fromkeys(cast(list[int], listed)))

    def part(self, key: str) -> "Description":
        """Return a nested block; absent or null reads as empty."""
        value = self._given(key, {})
        if not isinstance(value, dict):
            raise self.error(key, "a JSON object")
        return Description(value, f"{self.where}: {key}")

    def _given(self, key: str, default: object) -> object:
        value = self.facts.get(key)
        return default if value is None else value


def config_from_hf(facts: Facts, generation: Facts, *, where: str, dtype: str) -> ModelConfig:
    """Return the shape of a Hugging Face checkpoint.

    Args:
        facts: config.json.
        generation: generation_config.json, whose end ids replace config.json's; may be empty.
        where: the path of config.json, for error messages.
        dtype: the dtype to run in; "" takes the checkpoint's own.
    Raises:
        ModelError: names the file, the key, its value and what is supported.
    """
    about = Description(facts, where)
    family = _family(about)
    _refuse_unsupported(about)
    heads, embed = about.count("num_attention_heads"), about.count("hidden_size")
    has_bias = family == "qwen2" or (family != "mistral" and about.flag("attention_bias"))
    config = ModelConfig(
        family=family,
        vocab_size=about.count("vocab_size"),
        num_layers=about.count("num_hidden_layers"),
        embed_dim=embed,
        mlp_dim=about.count("intermediate_size"),
        num_q_heads=heads,
        num_kv_heads=about.count("num_key_value_heads", heads),
        head_dim=about.count(
            "head_dim", 128 if _is_default_qwen3(family, facts) else embed // heads
        ),
        max_position=about.count("max_position_embeddings"),
        rope_theta=_rope_theta(about),
        rope_scaling=_divided(_rope_scaling(about), _rope_block(about)),
        norm_eps=about.number("rms_norm_eps", 1e-6),
        tie_embeddings=about.flag("tie_word_embeddings"),
        attention_bias=has_bias,
        attention_out_bias=has_bias and family != "qwen2",
        mlp_bias=family == "llama" and about.flag("mlp_bias"),
        qk_norm=family == "qwen3",
        windows=_windows(about, family),
        dtype=dtype or _own_dtype(about),
        bos_token_id=_bos(about, family),
        eos_token_ids=_eos(about, Description(generation, "generation_config.json"), family),
    )
    return checked(config, where)


def checked(config: ModelConfig, where: str) -> ModelConfig:
    """Return `config` if its sizes fit each other.

    Raises:
        ModelError: heads cannot be grouped, or a head cannot be rotated.
    """
    if config.num_q_heads % config.num_kv_heads:
        raise ModelError(
            f"{where}: the number of query heads ({config.num_q_heads}) must be a multiple of the "
            f"number of key/value heads ({config.num_kv_heads})"
        )
    if config.head_dim % 2 or (config.rope_scaling.kind == "dynamic" and config.head_dim < 4):
        raise ModelError(
            f"{where}: head_dim must be even and fit its rope type, not {config.head_dim}"
        )
    divisors, half = config.rope_scaling.divisors, config.head_dim // 2
    if divisors is not None and len(divisors) != half:
        raise ModelError(
            f"{where}: rope_freqs.weight must hold {half} divisors, not {len(divisors)}"
        )
    return config


def _family(about: Description) -> str:
    """Tell the family from `architectures`, or from `model_type` where that is absent."""
    listed = about.facts.get("architectures")
    names = listed if isinstance(listed, list) else []
    if not names:
        model_type = about.text("model_type")
        names = [name for name, family in ARCHITECTURES.items() if family == model_type]
    if len(names) != 1 or names[0] not in ARCHITECTURES:
        key = "architectures" if listed else "model_type"
        raise about.error(
            key, f"one of {', '.join(ARCHITECTURES if listed else ARCHITECTURES.values())}"
        )
    return ARCHITECTURES[names[0]]


def _refuse_unsupported(about: Description) -> None:
    """Raise ModelError for keys that would change the computation."""
    if about.text("hidden_act", "silu") != "silu":
        raise about.error("hidden_act", "silu")
    if about.number("partial_rotary_factor", 1.0) != 1.0:
        raise about.error("partial_rotary_factor", "1")


def _is_default_qwen3(family: str, facts: Facts) -> bool:
    """Whether transformers' default head size of Qwen3 applies."""
    return family == "qwen3" and facts.get("head_dim") is None


def _own_dtype(about: Description) -> str:
    key = "dtype" if about.facts.get("dtype") is not None else "torch_dtype"
    dtype = about.text(key, "float32").removeprefix("torch.")
    if dtype not in DTYPES:
        raise about.error(key, f"one of {', '.join(DTYPES)}")
    return dtype


def _bos(about: Description, family: str) -> int | None:
    default = (1,) if family in ("llama", "mistral") else ()
    return next(iter(about.ids("bos_token_id", default)), None)


def _eos(about: Description, generation: Description, family: str) -> tuple[int, ...]:
    """The end ids of generation_config.json, else those of config.json."""
    default = (2,) if family in ("llama", "mistral") else ()
    return generation.ids("eos_token_id") or about.ids("eos_token_id", default)


def _windows(about: Description, family: str) -> tuple[int | None, ...]:
    """The window of each layer; empty when no layer has one."""
    layers = about.count("num_hidden_layers")
    if family == "llama":
        return ()
    if family == "mistral":
        is_off = "sliding_window" in about.facts and about.facts["sliding_window"] is None
        return () if is_off else (about.count("sliding_window", 4096),) * layers
    if not about.flag("use_sliding_window"):
        return ()
    window = about.count("sliding_window", 4096)
    windows = tuple(window if is_sliding else None for is_sliding in _sliding_layers(about, layers))
    return windows if any(windows) else ()


def _sliding_layers(about: Description, layers: int) -> list[bool]:
    """Which layers of a Qwen model slide: as listed, else those from `max_window_layers` on."""
    listed = about.facts.get("layer_types")
    if listed is None:
        first = about.facts.get("max_window_layers", 28)
        if type(first) is not int or first < 0:
            raise about.error("max_window_layers", "a whole number")
        return [layer >= first for layer in range(layers)]
    kinds = ("full_attention", "sliding_attention")
    if not isinstance(listed, list) or len(listed) != layers or not set(listed) <= set(kinds):
        raise about.error("layer_types", f"a list of {layers} of {' or '.join(kinds)}")
    return [kind == "sliding_attention" for kind in listed]


def _rope_block(about: Description) -> Description:
    """The block on the rotation: `rope_scaling` if it says anything, else `rope_parameters`."""
    return about.part("rope_scaling" if about.facts.get("rope_scaling") else "rope_parameters")


def _rope_theta(about: Description) -> float:
    block = _rope_block(about)
    return block.number("rope_theta", about.number("rope_theta", 10000.0))


def _rope_scaling(about: Description) -> RopeScaling:
    block = _rope_block(about)
    key = "rope_type" if "rope_type" in block.facts else "type"
    kind = block.text(key, "default")
    if kind not in ROPE_KINDS or any(isinstance(value, dict) for value in block.facts.values()):
        raise block.error(key, f"one of {', '.join(ROPE_KINDS)}, the same for all layers")
    if block.number("partial_rotary_factor", 1.0) != 1.0:
        raise block.error("partial_rotary_factor", "1")
    if kind == "default":
        return RopeScaling()
    limit = about.count("max_position_embeddings")
    if kind in ("linear", "dynamic"):
        name = cast(Literal["linear", "dynamic"], kind)
        original = limit if kind == "dynamic" else None
        return RopeScaling(kind=name, factor=block.number("factor"), original_max_position=original)
    original = about.count(
        "original_max_position_embeddings", block.count("original_max_position_embeddings", limit)
    )
    return _llama3(block, original) if kind == "llama3" else _yarn(block, original, limit)


def _divided(scaling: RopeScaling, block: Description) -> RopeScaling:
    """Add the divisors of each frequency, which only a converted GGUF file's description has."""
    given = block.facts.get("divisors")
    if given is None:
        return scaling
    listed = cast(list[object], given if isinstance(given, list | tuple) else [None])
    if not all(type(x) in (int, float) and 0 < cast(float, x) < math.inf for x in listed):
        raise block.error("divisors", "a list of positive numbers")
    return replace(scaling, divisors=tuple(float(cast(float, x)) for x in listed))


def _llama3(block: Description, original: int) -> RopeScaling:
    low, high = block.number("low_freq_factor"), block.number("high_freq_factor")
    if low >= high:
        raise block.error("high_freq_factor", f"above low_freq_factor ({low:g})")
    return RopeScaling(
        kind="llama3",
        factor=block.number("factor"),
        original_max_position=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(block: Description, original: int, limit: int) -> RopeScaling:
    return RopeScaling(
        kind="yarn",
        factor=block.number("factor", limit / original if "factor" in block.facts else None),
        original_max_position=original,
        beta_fast=block.number("beta_fast", 32.0),
        beta_slow=block.number("beta_slow", 1.0),
        attention_factor=block.optional_number("attention_factor"),
        mscale=block.optional_number("mscale"),
        mscale_all_dim=block.optional_number("mscale_all_dim"),
        truncate=block.flag("truncate", True),
    )
