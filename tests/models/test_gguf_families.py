"""GGUF metadata -> ModelConfig."""

import math

import pytest
from tiny import tiny_model_config

from paged_jax.config import ModelConfig, ModelError, RopeScaling
from paged_jax.models.gguf_families import config_from_gguf

TENSORS = ("token_embd.weight", "output.weight")


def make_metadata(arch: str = "llama", **changes) -> dict:
    own = {
        "block_count": 2,
        "context_length": 512,
        "embedding_length": 64,
        "feed_forward_length": 128,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": 16,
    }
    own |= {key.replace("__", "."): value for key, value in changes.items()}
    facts = {f"{arch}.{key}": value for key, value in own.items() if value is not None}
    facts |= {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    words = [str(token) for token in range(320)]
    return facts | {"general.architecture": arch, "tokenizer.ggml.tokens": words}


def read(metadata: dict, tensors: tuple[str, ...] = TENSORS, **options) -> ModelConfig:
    return config_from_gguf(metadata, tensors, where="m.gguf", dtype="float32", **options)


def test_a_llama_is_read_whole():
    assert read(make_metadata()) == tiny_model_config()


@pytest.mark.parametrize(
    ("arch", "tensors", "fields"),
    [
        ("llama", ("token_embd.weight",), ("tie_embeddings",)),
        ("qwen2", (*TENSORS, "blk.0.attn_q.bias"), ("attention_bias",)),
        ("qwen3", TENSORS, ("qk_norm",)),
        ("llama", (*TENSORS, "blk.0.attn_output.bias"), ("attention_out_bias",)),
        ("llama", (*TENSORS, "blk.0.ffn_gate.bias"), ("mlp_bias",)),
    ],
)
def test_tensors_tell_what_the_metadata_do_not(arch, tensors, fields):
    expected = tiny_model_config(family=arch, **dict.fromkeys(fields, True))
    assert read(make_metadata(arch), tensors) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"attention__key_length": 24, "rope__dimension_count": 24}, 24),
        ({"rope__dimension_count": 8}, 8),
        ({"rope__dimension_count": None}, 16),
    ],
)
def test_head_dim_is_given_or_derived(changes, expected):
    assert read(make_metadata(**changes)).head_dim == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope__scaling__type": "none"}, RopeScaling()),
        (
            {"rope__scaling__type": "linear", "rope__scaling__factor": 2.0},
            RopeScaling("linear", 2.0),
        ),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 4.0,
                "rope__scaling__original_context_length": 128,
            },
            RopeScaling("yarn", 4.0, 128, attention_factor=0.1 * math.log(4) + 1),
        ),
    ],
)
def test_rope_scaling_is_read(changes, expected):
    assert read(make_metadata(**changes)).rope_scaling == expected


def test_stored_divisors_become_part_of_the_configuration():
    config = read(make_metadata(), rope_divisors=[2.0] * 8)
    assert config.rope_scaling == RopeScaling(divisors=(2.0,) * 8)
    assert hash(config)


def test_every_kind_of_end_id_is_taken():
    ends = {"tokenizer.ggml.eot_token_id": 9, "tokenizer.ggml.eom_token_id": 2}
    assert read(make_metadata() | ends).eos_token_ids == (2, 9)


def test_a_window_holds_for_all_layers():
    assert read(make_metadata(attention__sliding_window=8)).windows == (8, 8)
    assert read(make_metadata(attention__sliding_window=0)).windows == ()


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        (make_metadata("gpt2"), "general.architecture"),
        (make_metadata(block_count=None), "block_count"),
        (make_metadata(attention__key_length=32), "rope.dimension_count"),
        (make_metadata(attention__value_length=8), "attention.value_length"),
        (make_metadata(expert_count=8), "expert_count"),
        (make_metadata(attention__head_count=[4, 2]), "attention.head_count"),
        (make_metadata(rope__scaling__type="longrope"), "rope.scaling.type"),
        (make_metadata(rope__scaling__type="linear"), "rope.scaling.factor"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(metadata, key):
    with pytest.raises(ModelError, match=rf"m\.gguf.*{key}"):
        read(metadata)


def test_divisors_of_another_head_size_are_refused():
    with pytest.raises(ModelError, match="must hold 8 divisors, not 4"):
        read(make_metadata(), rope_divisors=[1.0] * 4)
