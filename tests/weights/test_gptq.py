"""GPTQ checkpoints: every variant bit for bit, the model they make, and what is refused."""

import json
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from drive import drive
from loading import LoadedModel, load_model
from packers import change_quantization, change_tensors, make_packed_folders, pack_gptq
from tiny import greedy, oracle_logits, tiny_words

from paged_jax import LLM, SamplingParams
from paged_jax.config import ModelError, OptionError, Quantisation
from paged_jax.models.params import ModelParams
from paged_jax.models.quantised import QuantisedMatrix, dequantise, is_quantised
from paged_jax.weights.gptq import read_gptq
from paged_jax.weights.safetensors_reader import SafetensorsFolder
from paged_jax.weights.source import ModelSource

FACTS = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False}
STEM = "model.layers.1.self_attn.k_proj."


def load(folder: Path, quantization: str | None = None) -> LoadedModel:
    source = ModelSource("folder", folder, "tiny")
    return load_model(source, quantization=quantization)


def dense(params: ModelParams) -> ModelParams:
    unpack = lambda leaf: dequantise(leaf) if is_quantised(leaf) else leaf  # noqa: E731
    return jax.tree.map(unpack, params, is_leaf=is_quantised)


def same(one: ModelParams, other: ModelParams) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, dense(one), dense(other)))


@pytest.fixture
def folders(tmp_path) -> tuple[Path, Path]:
    return make_packed_folders(tmp_path, pack_gptq, **FACTS)


@pytest.mark.parametrize("layout", ["gptq", "gptq_v2"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bits": 8},
        {"group_size": 16, "sym": True},
        {"group_size": -1},
        {"group_size": 128},
        {"group_size": 64, "bits": 8, "sym": True},
        {"desc_act": True},
        {"desc_act": True, "bits": 8, "group_size": 16},
    ],
)
def test_packed_matrices_equal_their_floats_bit_for_bit(tmp_path, layout, changes):
    pack = partial(pack_gptq, is_first_format=layout == "gptq", **changes)
    facts = FACTS | changes | {"checkpoint_format": layout}
    packed, plain = make_packed_folders(tmp_path, pack, **facts)
    loaded = load(packed)
    assert all(is_quantised(layer.w_down) for layer in loaded.params.layers)
    assert same(loaded.params, load(plain).params)


def test_the_list_of_groups_may_be_left_out_where_groups_are_runs(tmp_path):
    packed, plain = make_packed_folders(tmp_path, partial(pack_gptq, has_g_idx=False), **FACTS)
    assert same(load(packed).params, load(plain).params)


@pytest.mark.parametrize("outer", [12, 8, 20])
def test_outputs_need_not_fill_a_word(tmp_path, rng, outer):
    parts, expected = pack_gptq(rng, 64, outer)
    tensors = {f"x.{name}": array for name, array in parts.items()}
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    folder = SafetensorsFolder(tmp_path, is_tied=False)
    matrix = read_gptq(folder, "x.", (64, outer), Quantisation("gptq", 4, 32, 1))
    assert np.array_equal(dequantise(jax.tree.map(jax.device_put, matrix)), expected)


@pytest.mark.parametrize("desc_act", [False, True])
def test_logits_equal_the_oracle_s_on_the_dequantised_weights(tmp_path, desc_act):
    pack = partial(pack_gptq, desc_act=desc_act)
    packed, plain = make_packed_folders(tmp_path, pack, **FACTS | {"desc_act": desc_act})
    loaded, floats, ids = load(packed), load(plain), list(range(3, 20))
    (actual,) = drive(loaded.config, loaded.params, [ids])
    expected = oracle_logits(floats.config, floats.params, ids)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-3)


def test_an_engine_generates_what_the_oracle_does(folders):
    packed, floats = folders[0], load(folders[1])
    prompt, params = [5, 6, 7, 8], SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    limits = {"max_model_len": 64, "max_num_batched_tokens": 16, "max_num_seqs": 1}
    with LLM(packed, quantization="gptq", dtype="float32", **limits) as llm:
        (answer,) = llm.generate([prompt], params, use_tqdm=False)
    config = replace(floats.config, vocab_limit=len(tiny_words()))
    assert answer.outputs[0].token_ids == greedy(config, floats.params, prompt, 4)


def test_sorted_rows_are_kept_and_no_zero_points_where_all_are_the_middle(tmp_path):
    pack = partial(pack_gptq, sym=True, desc_act=True)
    packed, _ = make_packed_folders(tmp_path, pack, **FACTS | {"desc_act": True})
    matrix = load(packed).params.layers[0].w_q
    assert isinstance(matrix, QuantisedMatrix) and matrix.zeros is None
    assert sorted(matrix.order.tolist()) == list(range(64))
    assert matrix.values.shape == (32, 64) and matrix.scales.dtype == np.float16


def test_an_older_folder_s_own_file_is_read(folders):
    packed, plain = folders
    facts = json.loads((packed / "config.json").read_text())
    del facts["quantization_config"]
    (packed / "config.json").write_text(json.dumps(facts))
    own = {"bits": 4, "group_size": 32, "desc_act": False, "sym": False}
    (packed / "quantize_config.json").write_text(json.dumps(own))
    assert same(load(packed).params, load(plain).params)
    (packed / "quantize_config.json").write_text(json.dumps(own | {"bits": 3}))
    with pytest.raises(ModelError, match=r"quantize_config\.json: bits must be 4 or 8, not 3"):
        load(packed)


def test_a_matrix_left_in_floats_stays_so(folders):
    packed, plain = folders
    name = STEM + "weight"
    floats = safetensors.numpy.load_file(plain / "model.safetensors")
    gone = dict.fromkeys(STEM + part for part in ("qweight", "qzeros", "scales", "g_idx"))
    change_tensors(packed, gone | {name: floats[name]})
    params = load(packed).params
    assert not is_quantised(params.layers[1].w_k) and is_quantised(params.layers[0].w_k)
    assert same(params, load(plain).params)


def test_an_extra_bias_is_mentioned_unless_it_is_zero(folders, caplog):
    change_tensors(folders[0], {STEM + "bias": np.zeros(32, np.float16)})
    with caplog.at_level(logging.WARNING, "paged_jax"):
        load(folders[0])
        assert not caplog.records
        change_tensors(folders[0], {STEM + "bias": np.ones(32, np.float16)})
        load(folders[0])
    assert f"1 tensors are not used: {STEM}bias" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_method": "fp8"}, "quant_method must be awq or gptq, not 'fp8'"),
        ({"bits": 3}, "bits must be 4 or 8, not 3"),
        ({"bits": "4"}, "bits must be a positive whole number, not '4'"),
        ({"group_size": 0}, "group_size must be a positive whole number, or -1 .*, not 0"),
        ({"group_size": 48}, "has 64 inputs, which are not cut evenly by a group_size of 48"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format must be one of gptq, gptq_v2"),
        ({"pack_dtype": "int16"}, "pack_dtype must be int32"),
        ({"dynamic": {r"+:.*\.18\..*": {"bits": 8}}}, "dynamic must be without settings"),
        ({"lm_head": True}, "lm_head must be false"),
        ({"desc_act": "yes"}, "desc_act must be true or false"),
        ({"bits": 8}, r"qweight has shape \[8, 64\], expected \[16, 64\]"),
        ({"group_size": 16}, r"qzeros has shape \[2, 8\], expected \[4, 8\]"),
    ],
)
def test_a_description_that_cannot_be_computed_is_refused_by_name(folders, changes, message):
    change_quantization(folders[0], **changes)
    with pytest.raises(ModelError, match=rf"packed/.*{message}") as caught:
        load(folders[0])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("qweight", None, "qweight is missing"),
        ("scales", None, "scales is missing"),
        ("scales", np.full((2, 32), np.inf, np.float16), "scales holds NaN, infinity"),
        ("scales", np.ones((2, 31), np.float16), r"scales has shape \[2, 31\], expected \[2, 32\]"),
        ("qzeros", np.ones((2, 4), np.float32), "qzeros has type F32, not I32"),
        ("g_idx", np.zeros(64, np.int32), "g_idx must list 32 inputs for each of 2 groups"),
        ("g_idx", np.full(64, -1, np.int32), "g_idx must list 32 inputs for each of 2 groups"),
    ],
)
def test_a_damaged_matrix_is_refused_by_name(folders, part, value, message):
    change_tensors(folders[0], {STEM + part: value})
    with pytest.raises(ModelError, match=rf"packed.*: .*k_proj\.{message}"):
        load(folders[0])


def test_sorted_groups_need_their_list(tmp_path):
    pack = partial(pack_gptq, has_g_idx=False)
    packed, _ = make_packed_folders(tmp_path, pack, **FACTS | {"desc_act": True})
    with pytest.raises(ModelError, match="g_idx is missing"):
        load(packed)


@pytest.mark.parametrize("flag", ["awq", "int8"])
def test_a_flag_that_contradicts_the_checkpoint_says_what_it_is(folders, flag):
    with pytest.raises(OptionError, match=f"--quantization {flag} .* is packed by gptq"):
        load(folders[0], flag)
    with pytest.raises(OptionError, match=r"--quantization gptq .* is of floats"):
        LLM(folders[1], quantization="gptq")
    assert load(folders[0], "gptq").config.quantisation == Quantisation("gptq", 4, 32, 1)
