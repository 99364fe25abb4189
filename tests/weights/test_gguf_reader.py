"""Tensors of GGUF files: row order, quantised types, rotary divisors, leftovers."""

import logging
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny import make_tiny_gguf, tiny_config_json, tiny_tensors

from paged_jax.config import ModelError
from paged_jax.gguf_header import GGML_TYPES, TensorInfo
from paged_jax.models.params import ModelParams
from paged_jax.weights.gguf_reader import dequantise
from paged_jax.weights.load import load_params, read_config
from paged_jax.weights.source import ModelSource

TYPES = {kind.name: kind for kind in GGML_TYPES.values()}


def load(file: Path) -> ModelParams:
    source = ModelSource("gguf", file, "tiny")
    return load_params(source, read_config(source), progress=False)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_rows_of_queries_and_keys_come_back_in_halves(tmp_path, family):
    tensors = tiny_tensors(tiny_config_json(family))
    layer = load(make_tiny_gguf(tmp_path / "m.gguf", family=family)).layers[0]
    for name, actual in (("q", layer.w_q), ("k", layer.w_k), ("v", layer.w_v)):
        stored = tensors[f"model.layers.0.self_attn.{name}_proj.weight"]
        assert np.array_equal(actual, stored.T), name


def test_biases_of_llama_are_put_back_in_halves_too(tmp_path):
    file = make_tiny_gguf(tmp_path / "m.gguf", attention_bias=True)
    tensors = tiny_tensors(tiny_config_json(attention_bias=True))
    layer = load(file).layers[1]
    assert np.array_equal(layer.b_q, tensors["model.layers.1.self_attn.q_proj.bias"])
    assert np.array_equal(layer.b_k, tensors["model.layers.1.self_attn.k_proj.bias"])
    assert np.array_equal(layer.b_o, tensors["model.layers.1.self_attn.o_proj.bias"])


@pytest.mark.parametrize("name", TYPES)
def test_every_supported_type_is_dequantised_as_the_gguf_package_does(name, rng):
    kind = TYPES[name]
    info = TensorInfo("t", (40, 512), kind, offset=32)
    stored = rng.integers(0, 60, info.num_bytes, dtype=np.uint8)  # small: scales stay finite
    data = np.concatenate([np.zeros(32, np.uint8), stored, np.zeros(8, np.uint8)])
    expected = gguf.quants.dequantize(stored.reshape(40, -1), gguf.GGMLQuantizationType[name])
    actual = dequantise(data, info)
    assert actual.shape == (40, 512)
    assert np.array_equal(actual.astype(np.float32), expected)


@pytest.mark.parametrize(("quant", "allowed"), [("Q8_0", 0.01), ("Q4_0", 0.1), ("BF16", 0.01)])
def test_a_quantised_file_is_near_the_original(tmp_path, quant, allowed):
    exact = load(make_tiny_gguf(tmp_path / "a.gguf"))
    near = load(make_tiny_gguf(tmp_path / "b.gguf", quant=quant))
    error = np.abs(np.asarray(exact.layers[0].w_q) - np.asarray(near.layers[0].w_q))
    assert 0 < error.mean() < allowed


def test_no_output_head_means_tied(tmp_path):
    params = load(make_tiny_gguf(tmp_path / "m.gguf", tie_word_embeddings=True))
    assert params.unembed is None


def test_rotary_divisors_become_configuration_and_not_a_warning(tmp_path, caplog):
    extra = {"rope_freqs.weight": np.arange(1, 9, dtype=np.float32)}
    file = make_tiny_gguf(tmp_path / "m.gguf", extra=extra)
    load(file)
    config = read_config(ModelSource("gguf", file, "tiny"))
    assert config.rope_scaling.divisors == tuple(range(1, 9)) and not caplog.records


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_bad_rotary_divisors_are_refused(tmp_path, bad):
    extra = {"rope_freqs.weight": np.full(8, bad, np.float32)}
    file = make_tiny_gguf(tmp_path / "m.gguf", extra=extra)
    with pytest.raises(ModelError, match=r"rope_freqs\.weight must hold positive numbers"):
        read_config(ModelSource("gguf", file, "tiny"))


def test_an_unknown_tensor_is_mentioned(tmp_path, caplog):
    file = make_tiny_gguf(tmp_path / "m.gguf", extra={"blk.0.new": np.ones(4, np.float32)})
    with caplog.at_level(logging.WARNING, "paged_jax"):
        load(file)
    assert "1 tensors are not used: blk.0.new" in caplog.text


def test_a_wrong_shape_is_named(tmp_path):
    file = make_tiny_gguf(tmp_path / "m.gguf")
    source = ModelSource("gguf", file, "tiny")
    config = read_config(source)
    with pytest.raises(
        ModelError, match=r"blk\.0\.ffn_gate\.weight has shape \[128, 64\], expected"
    ):
        load_params(source, replace(config, mlp_dim=96), progress=False)


def test_a_missing_tensor_is_named(tmp_path):
    file = make_tiny_gguf(tmp_path / "m.gguf")
    file.write_bytes(file.read_bytes().replace(b"blk.1.attn_v.weight", b"blk.1.attn_w.weight"))
    with pytest.raises(ModelError, match=r"m\.gguf: tensor blk\.1\.attn_v\.weight is missing"):
        load(file)


def test_a_part_of_a_split_file_is_refused(tmp_path):
    file = make_tiny_gguf(tmp_path / "m.gguf", metadata={"split": 2})
    raw = file.read_bytes()
    file.write_bytes(
        raw.replace(b"\x0b\0\0\0\0\0\0\0llama.split", b"\x0b\0\0\0\0\0\0\0split.count")
    )
    with pytest.raises(ModelError, match="one part of a split GGUF file"):
        load(file)
