"""From a GGUF file's metadata to a ModelConfig. Mistral models are stored as "llama"."""

import math
from collections.abc import Collection, Sequence

from paged_jax.config import ModelConfig, ModelError, RopeScaling
from paged_jax.models.families import Description, Facts, checked

GGUF_FAMILIES = ("llama", "qwen2", "qwen3")
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def config_from_gguf(
    metadata: Facts,
    tensors: Collection[str],
    *,
    where: str,
    dtype: str,
    rope_divisors: Sequence[float] | None = None,
) -> ModelConfig:
    """Return the shape of a model stored as GGUF; the vocabulary is as long as the token list.

    Args:
        tensors: the names of the file's tensors tell which biases there are, and whether a head.
        where: the file's path, for error messages.
        rope_divisors: the content of `rope_freqs.weight`, if the file has it.
    Raises:
        ModelError: names the file, the key, its value and what is supported.
    """
    family = Description(metadata, where).text("general.architecture")
    if family not in GGUF_FAMILIES:
        known = ", ".join(GGUF_FAMILIES)
        raise ModelError(f"{where}: general.architecture must be one of {known}, not {family!r}")
    about = _without_prefix(metadata, family, where)
    embed, heads = about.count("embedding_length"), about.count("attention.head_count")
    rope_dim = about.count("rope.dimension_count", embed // heads)
    head_dim = about.count("attention.key_length", rope_dim)
    _refuse_unsupported(about, head_dim)
    config = ModelConfig(
        family=family,
        vocab_size=_vocab_size(metadata, about),
        num_layers=about.count("block_count"),
        embed_dim=embed,
        mlp_dim=about.count("feed_forward_length"),
        num_q_heads=heads,
        num_kv_heads=about.count("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position=about.count("context_length"),
        rope_theta=about.number("rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(about, rope_divisors),
        norm_eps=about.number("attention.layer_norm_rms_epsilon"),
        tie_embeddings="output.weight" not in tensors,
        attention_bias="blk.0.attn_q.bias" in tensors,
        attention_out_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        qk_norm=family == "qwen3",
        windows=_windows(about),
        dtype=dtype or "bfloat16",
        bos_token_id=next(iter(_token_ids(metadata, ("bos_token_id",), where)), None),
        eos_token_ids=_token_ids(metadata, END_KEYS, where),
    )
    return checked(config, where)


def _without_prefix(metadata: Facts, family: str, where: str) -> Description:
    """The model's own keys, such as `llama.block_count`, without the family in front."""
    prefix = f"{family}."
    facts = {key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)}
    return Description(facts, f"{where}: {family}")


def _vocab_size(metadata: Facts, about: Description) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) and tokens else about.count("vocab_size")


def _refuse_unsupported(about: Description, head_dim: int) -> None:
    """Raise ModelError for keys that would change the computation."""
    for key in ("rope.dimension_count", "attention.value_length"):
        if about.count(key, head_dim) != head_dim:
            raise about.error(key, f"the head size ({head_dim})")
    for key in ("expert_count", "attention.sliding_window_pattern"):
        if about.facts.get(key):
            raise about.error(key, "absent")


def _windows(about: Description) -> tuple[int | None, ...]:
    window = about.facts.get("attention.sliding_window") or None
    return (
        ()
        if window is None
        else (about.count("attention.sliding_window"),) * about.count("block_count")
    )


def _token_ids(metadata: Facts, keys: Sequence[str], where: str) -> tuple[int, ...]:
    about = Description(metadata, where)
    found = (token for key in keys for token in about.ids(f"tokenizer.ggml.{key}"))
    return tuple(dict.fromkeys(found))


def _rope_scaling(about: Description, divisors: Sequence[float] | None) -> RopeScaling:
    kind = about.text("rope.scaling.type", "none")
    given = None if divisors is None else tuple(divisors)
    if kind not in ("none", "linear", "yarn"):
        raise about.error("rope.scaling.type", "none, linear or yarn")
    if kind == "none":
        return RopeScaling(divisors=given)
    factor = about.number("rope.scaling.factor")
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor, divisors=given)
    gain = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position=about.count(
            "rope.scaling.original_context_length", about.count("context_length")
        ),
        beta_fast=about.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=about.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=gain * about.number("rope.scaling.attn_factor", 1.0),
        divisors=given,
    )
