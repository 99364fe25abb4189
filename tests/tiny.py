"""TINY models: a few kilobytes of random weights in every format the engine reads."""

import json
from pathlib import Path

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from oracle import greedy, oracle_logits
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from paged_jax.config import ModelConfig
from paged_jax.models.params import ModelParams, abstract_params

__all__ = [
    "greedy",
    "make_params",
    "make_tiny_folder",
    "make_tiny_gguf",
    "oracle_logits",
    "tiny_config_json",
    "tiny_model_config",
    "tiny_tensors",
    "tiny_words",
]

SPECIALS = ("<pad>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "h e", "i n", "e r", "a n", "o n", "r e", "Ġ t", "Ġ a", "th e", "in g", "Ġt he")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FAMILIES = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": None,
    },
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
}
SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def tiny_model_config(**changes) -> ModelConfig:
    """Return TINY's ModelConfig with some of its fields changed."""
    fields = {
        "family": "llama",
        "vocab_size": 320,
        "num_layers": 2,
        "embed_dim": 64,
        "mlp_dim": 128,
        "num_q_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "max_position": 512,
        "bos_token_id": 1,
        "eos_token_ids": (2,),
    }
    return ModelConfig(**(fields | changes))


def make_params(config: ModelConfig, seed: int = 0) -> ModelParams:
    """Return random parameters with peaked logits and norms and biases that matter."""
    rng = np.random.default_rng(seed)
    leaves, tree = jax.tree.flatten(abstract_params(config))
    values = [_random(rng, leaf.shape, is_norm=False) for leaf in leaves]
    return jax.tree.unflatten(tree, [jnp.asarray(v).astype(config.dtype) for v in values])


def tiny_config_json(family: str = "llama", **changes) -> dict:
    """Return the content of a config.json."""
    return SIZES | FAMILIES[family] | changes


def make_tiny_folder(path: Path, *, family: str = "llama", seed: int = 0, **config_changes) -> Path:
    """Write a complete checkpoint folder; `config_changes` are keys of config.json."""
    path.mkdir(parents=True, exist_ok=True)
    facts = tiny_config_json(family, **config_changes)
    ends = {"bos_token_id": facts["bos_token_id"], "eos_token_id": facts["eos_token_id"]}
    (path / "config.json").write_text(json.dumps(facts))
    (path / "generation_config.json").write_text(json.dumps(ends))
    safetensors.numpy.save_file(tiny_tensors(facts, seed), path / "model.safetensors")
    _write_tokenizer(path)
    return path


def tiny_tensors(facts: dict, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random weights under transformers' names, matrices as [out, in]."""
    rng = np.random.default_rng(seed)
    embed, vocab = facts["hidden_size"], facts["vocab_size"]
    shapes = {"model.embed_tokens.weight": (vocab, embed), "model.norm.weight": (embed,)}
    for layer in range(facts["num_hidden_layers"]):
        named = {
            f"model.layers.{layer}.{key}": shape for key, shape in _layer_shapes(facts).items()
        }
        shapes |= named
    if not facts["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, embed)
    return {name: _random(rng, shape, is_norm="norm" in name) for name, shape in shapes.items()}


def _layer_shapes(facts: dict) -> dict[str, tuple[int, ...]]:
    embed, mlp, head_dim = facts["hidden_size"], facts["intermediate_size"], facts["head_dim"]
    q, kv = facts["num_attention_heads"] * head_dim, facts["num_key_value_heads"] * head_dim
    matrices = {
        "self_attn.q_proj": (q, embed),
        "self_attn.k_proj": (kv, embed),
        "self_attn.v_proj": (kv, embed),
        "self_attn.o_proj": (embed, q),
        "mlp.gate_proj": (mlp, embed),
        "mlp.up_proj": (mlp, embed),
        "mlp.down_proj": (embed, mlp),
    }
    shapes = {f"{name}.weight": shape for name, shape in matrices.items()}
    shapes |= {"input_layernorm.weight": (embed,), "post_attention_layernorm.weight": (embed,)}
    family, names = facts["model_type"], list(matrices)
    biased = names[:3] if family == "qwen2" else names[:4] if facts.get("attention_bias") else []
    biased += names[4:] if facts.get("mlp_bias") else []
    shapes |= {f"{name}.bias": matrices[name][:1] for name in biased}
    if family == "qwen3":
        shapes |= {f"self_attn.{name}_norm.weight": (head_dim,) for name in "qk"}
    return shapes


def _random(rng: np.random.Generator, shape: tuple[int, ...], *, is_norm: bool) -> np.ndarray:
    if len(shape) == 2:
        return rng.normal(0, 0.15, shape).astype(np.float32)
    return rng.normal(1.0 if is_norm else 0.5, 0.2, shape).astype(np.float32)


def tiny_words() -> list[str]:
    """Return the vocabulary in the order of its ids: specials, bytes, merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*SPECIALS, *alphabet, *(merge.replace(" ", "") for merge in MERGES)]


def _write_tokenizer(path: Path) -> None:
    words = {word: index for index, word in enumerate(tiny_words())}
    tokenizer = Tokenizer(models.BPE(words, [tuple(merge.split()) for merge in MERGES]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.save(str(path / "tokenizer.json"))
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": SPECIALS[0],
        "bos_token": SPECIALS[1],
        "eos_token": SPECIALS[2],
        "chat_template": CHATML,
        "clean_up_tokenization_spaces": False,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(facts))


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make_tiny_gguf(
    path: Path,
    *,
    family: str = "llama",
    seed: int = 0,
    quant: str = "F32",
    extra: dict[str, np.ndarray] | None = None,
    metadata: dict[str, int | float | str] | None = None,
    **config_changes,
) -> Path:
    """Write the model `make_tiny_folder` writes, as GGUF.

    Args:
        quant: type of the matrices; vectors stay F32.
        extra: tensors to add. metadata: keys to add after the architecture's prefix.
    """
    facts = tiny_config_json(family, **config_changes)
    arch = "llama" if family == "mistral" else family
    writer = gguf.GGUFWriter(path, arch)
    _add_metadata(writer, facts, arch)
    for key, value in (metadata or {}).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](f"{arch}.{key}", value)
    for name, array in tiny_tensors(facts, seed).items():
        _add_tensor(writer, _gguf_name(name), _paired(array, name, facts, arch), quant)
    for name, array in (extra or {}).items():
        _add_tensor(writer, name, array, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_metadata(writer: gguf.GGUFWriter, facts: dict, arch: str) -> None:
    writer.add_block_count(facts["num_hidden_layers"])
    writer.add_context_length(facts["max_position_embeddings"])
    writer.add_embedding_length(facts["hidden_size"])
    writer.add_feed_forward_length(facts["intermediate_size"])
    writer.add_head_count(facts["num_attention_heads"])
    writer.add_head_count_kv(facts["num_key_value_heads"])
    writer.add_key_length(facts["head_dim"])
    writer.add_value_length(facts["head_dim"])
    writer.add_rope_dimension_count(facts["head_dim"])
    writer.add_rope_freq_base(facts["rope_theta"])
    writer.add_layer_norm_rms_eps(facts["rms_norm_eps"])
    padding = facts["vocab_size"] - len(tiny_words())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tiny_words(), *(f"[PAD{index}]" for index in range(padding))])
    writer.add_token_types([3] * 3 + [1] * (len(tiny_words()) - 3) + [5] * padding)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHATML)


def _gguf_name(name: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{GGUF_NAMES[stem]}.{suffix}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.{suffix}"


def _paired(array: np.ndarray, name: str, facts: dict, arch: str) -> np.ndarray:
    """Interleave the halves of each head of q and k, as converters do for llama."""
    if arch != "llama" or not ("q_proj" in name or "k_proj" in name):
        return array
    heads = facts["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
    return array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _add_tensor(writer: gguf.GGUFWriter, name: str, array: np.ndarray, quant: str) -> None:
    kind = gguf.GGMLQuantizationType[quant if array.ndim == 2 else "F32"]
    writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
