"""config.json -> ModelConfig: transformers' keys and defaults, and one clear error for the rest."""

import pytest
from tiny import tiny_config_json, tiny_model_config

from paged_jax.config import ModelConfig, ModelError, RopeScaling
from paged_jax.models.families import config_from_hf


def read(facts: dict, *, generation: dict | None = None, dtype: str = "float32") -> ModelConfig:
    return config_from_hf(facts, generation or {}, where="m/config.json", dtype=dtype)


def tiny(family: str = "llama", **changes) -> ModelConfig:
    return read(tiny_config_json(family, **changes))


def without(key: str, family: str = "llama") -> dict:
    facts = tiny_config_json(family)
    del facts[key]
    return facts


def test_a_llama_is_read_whole():
    assert tiny() == tiny_model_config()


@pytest.mark.parametrize(
    ("family", "changes", "fields"),
    [
        ("llama", {"attention_bias": True}, ("attention_bias", "attention_out_bias")),
        ("llama", {"mlp_bias": True}, ("mlp_bias",)),
        ("llama", {"tie_word_embeddings": True}, ("tie_embeddings",)),
        ("mistral", {}, ()),
        ("qwen2", {}, ("attention_bias",)),
        ("qwen3", {}, ("qk_norm",)),
        ("qwen3", {"attention_bias": True}, ("qk_norm", "attention_bias", "attention_out_bias")),
    ],
)
def test_families_differ_in_their_switches(family, changes, fields):
    expected = tiny_model_config(family=family, **dict.fromkeys(fields, True))
    assert tiny(family, **changes) == expected


@pytest.mark.parametrize(
    ("family", "head_dim", "expected"),
    [("llama", 24, 24), ("llama", None, 16), ("qwen2", None, 16), ("qwen3", None, 128)],
)
def test_head_dim_is_given_or_derived(family, head_dim, expected):
    assert tiny(family, head_dim=head_dim).head_dim == expected


def test_absent_key_value_heads_are_the_query_heads():
    assert read(without("num_key_value_heads")).num_kv_heads == 4


def test_the_model_type_serves_where_architectures_are_absent():
    assert read(without("architectures", "qwen3")).family == "qwen3"


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("llama", {"sliding_window": 8}, ()),
        ("mistral", {"sliding_window": 8}, (8, 8)),
        ("mistral", {"sliding_window": None}, ()),
        ("qwen2", {"sliding_window": 8}, ()),
        (
            "qwen2",
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
            (None, 8),
        ),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True}, ()),
        (
            "qwen3",
            {
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            (8, None),
        ),
    ],
)
def test_windows_follow_each_family_s_keys(family, changes, expected):
    assert tiny(family, **changes).windows == expected


def test_an_absent_window_of_mistral_is_transformers_default():
    assert read(without("sliding_window", "mistral")).windows == (4096, 4096)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS = [
    (None, RopeScaling()),
    ({"rope_type": "default"}, RopeScaling()),
    ({"rope_type": "linear", "factor": 2}, RopeScaling("linear", 2.0)),
    ({"rope_type": "dynamic", "factor": 2.0}, RopeScaling("dynamic", 2.0, 512)),
    ({"rope_type": "llama3", **LLAMA3}, RopeScaling("llama3", 8.0, 512)),
    (
        {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 64},
        RopeScaling("llama3", 8.0, 64),
    ),
    (
        {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 128},
        RopeScaling("yarn", 4.0, 128),
    ),
    (
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16, "truncate": False, "mscale": 1},
        RopeScaling("yarn", 4.0, 512, beta_fast=16.0, truncate=False, mscale=1.0),
    ),
]


@pytest.mark.parametrize("block", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(("given", "expected"), SCALINGS)
def test_rope_blocks_of_both_names_are_read(block, given, expected):
    assert tiny(**{block: given}).rope_scaling == expected


def test_the_older_key_type_is_read():
    assert tiny(rope_scaling={"type": "linear", "factor": 2.0}).rope_scaling.kind == "linear"


def test_rope_theta_inside_the_block_wins():
    assert tiny(rope_parameters={"rope_type": "default", "rope_theta": 5e5}).rope_theta == 5e5
    assert tiny(rope_theta=3e5).rope_theta == 3e5
    assert read(without("rope_theta")).rope_theta == 10000.0


@pytest.mark.parametrize(
    ("own", "generation", "expected"),
    [
        (2, {}, (2,)),
        ([2, 7], {}, (2, 7)),
        (2, {"eos_token_id": [5, 6, 5]}, (5, 6)),
        (2, {"eos_token_id": None}, (2,)),
        (None, {}, (2,)),
    ],
)
def test_end_ids_come_from_the_generation_config_first(own, generation, expected):
    facts = tiny_config_json(eos_token_id=own) if own else without("eos_token_id")
    assert read(facts, generation=generation).eos_token_ids == expected


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_an_empty_dtype_takes_the_checkpoint_s_own(key):
    facts = tiny_config_json(**{"torch_dtype": None, key: "bfloat16"})
    assert read(facts, dtype="").dtype == "bfloat16"
    assert read(facts, dtype="float16").dtype == "float16"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architectures"),
        ({"architectures": None, "model_type": "gpt2"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"vocab_size": True}, "vocab_size"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"num_key_value_heads": 3}, "key/value heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"torch_dtype": "float8", "dtype": None}, "torch_dtype"),
        ({"eos_token_id": "2"}, "eos_token_id"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "foo", "factor": 2.0}}, "rope_type"),
        ({"rope_scaling": {"type": "longrope"}}, "type"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1}}, "high_freq"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(changes, key):
    with pytest.raises(ModelError, match=rf"m/config\.json.*{key}") as caught:
        read(tiny_config_json(**changes), dtype="")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["full_attention"]},
        {"layer_types": ["full_attention", "chunked_attention"]},
        {"max_window_layers": -1},
        {"sliding_window": 0},
    ],
)
def test_bad_windows_of_qwen_are_refused(changes):
    with pytest.raises(ModelError, match=next(iter(changes))):
        tiny("qwen2", use_sliding_window=True, **changes)


@pytest.mark.parametrize(
    "key",
    ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"],
)
def test_a_missing_size_is_refused_by_name(key):
    with pytest.raises(ModelError, match=f"{key} must be .* not absent"):
        read(without(key))
