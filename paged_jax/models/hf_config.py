"""From a ModelConfig to the config.json that describes it, for models that come without one."""

from dataclasses import replace

from paged_jax.config import ModelConfig, ModelError, RopeScaling
from paged_jax.models.families import ARCHITECTURES, config_from_hf

Facts = dict[str, object]


def config_json(config: ModelConfig, *, where: str) -> Facts:
    """Return the content of a config.json from which the same model is read.

    Args:
        where: the model's own file, for the error message.
    Raises:
        ModelError: no config.json can say what the model is.
    """
    is_sliding = config.family == "llama" and bool(config.windows)
    family = "mistral" if is_sliding else config.family
    facts = _facts(replace(config, family=family))
    read = config_from_hf(facts, {}, where=where, dtype=config.dtype)
    wanted = replace(config, family=family, is_packed=False, quantisation=None, vocab_limit=None)
    if read != wanted:
        names = [name for name in vars(wanted) if getattr(read, name) != getattr(wanted, name)]
        raise ModelError(
            f"{where}: config.json has no way to say this model's {', '.join(names)}: convert the "
            "model's safetensors folder"
        )
    return facts


def _facts(config: ModelConfig) -> Facts:
    has_bias = config.attention_bias
    window = next(filter(None, config.windows), None)
    return {
        "architectures": [
            name for name, family in ARCHITECTURES.items() if family == config.family
        ],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.embed_dim,
        "intermediate_size": config.mlp_dim,
        "num_attention_heads": config.num_q_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position,
        "rope_theta": config.rope_theta,
        "rope_scaling": _rope(config.rope_scaling),
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": has_bias,
        "mlp_bias": config.mlp_bias,
        "hidden_act": "silu",
        "sliding_window": window,
        "use_sliding_window": window is not None,
        "layer_types": [
            "full_attention" if seen is None else "sliding_attention" for seen in config.windows
        ]
        or None,
        "dtype": config.dtype,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }


def _rope(scaling: RopeScaling) -> Facts | None:
    """The block on the rotation, of what is not as it would be without it."""
    names = {"kind": "rope_type", "original_max_position": "original_max_position_embeddings"}
    plain = vars(RopeScaling())
    changed = {
        names.get(name, name): value
        for name, value in vars(scaling).items()
        if value != plain[name] or name in ("kind", "factor")
    }
    return None if scaling == RopeScaling() else changed
