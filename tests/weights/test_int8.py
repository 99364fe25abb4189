"""Quantising at load: the error of rounding, every source of floats, and the memory it saves."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from drive import drive
from loading import LoadedModel, load_model
from tiny import make_tiny_folder, make_tiny_gguf, oracle_logits, tiny_model_config

from paged_jax.config import CacheConfig, EngineConfig, OptionError, Quantisation, SchedulerConfig
from paged_jax.engine.preparation import size_pool
from paged_jax.engine_args import EngineArgs
from paged_jax.models.params import ModelParams
from paged_jax.models.quantised import dequantise, is_quantised
from paged_jax.weights.dummy import dummy_params
from paged_jax.weights.int8 import quantise
from paged_jax.weights.source import ModelSource


def load(path: Path, quantization: str | None = "int8") -> LoadedModel:
    source = ModelSource("gguf" if path.suffix == ".gguf" else "folder", path, "tiny")
    return load_model(source, quantization=quantization)


def dense(params: ModelParams) -> ModelParams:
    unpack = lambda leaf: dequantise(leaf) if is_quantised(leaf) else leaf  # noqa: E731
    return jax.tree.map(unpack, params, is_leaf=is_quantised)


def placed(matrix):
    return jax.tree.map(jax.device_put, matrix)


@pytest.mark.parametrize(("bits", "group_size"), [(8, None), (8, 32), (4, 16), (4, None)])
def test_no_value_is_off_by_more_than_half_a_step(rng, bits, group_size):
    weight = rng.normal(size=(64, 24)).astype(np.float32)
    weight[:, 5] = 0
    matrix = placed(quantise(weight, bits=bits, group_size=group_size))
    step = np.repeat(matrix.scales, 64 // len(matrix.scales), axis=0)
    assert np.all(np.abs(dequantise(matrix) - weight) <= step * 0.5001)
    assert not np.asarray(dequantise(matrix))[:, 5].any()


def test_the_largest_value_of_each_column_is_kept(rng):
    weight = rng.normal(size=(32, 8)).astype(np.float32)
    largest = np.abs(np.asarray(dequantise(placed(quantise(weight))))).max(axis=0)
    np.testing.assert_allclose(largest, np.abs(weight).max(axis=0), rtol=1e-6)


@pytest.mark.parametrize("name", ["folder", "model.gguf"])
def test_floats_of_every_source_are_quantised(tmp_path, name):
    make = make_tiny_gguf if name.endswith("gguf") else make_tiny_folder
    loaded, floats = load(make(tmp_path / name)), load(tmp_path / name, None)
    assert loaded.config.quantisation == Quantisation("int8")
    assert all(is_quantised(layer.w_o) for layer in loaded.params.layers)
    assert np.array_equal(loaded.params.embed, floats.params.embed)
    ids = list(range(3, 20))
    (actual,) = drive(loaded.config, loaded.params, [ids])
    expected = oracle_logits(loaded.config, dense(loaded.params), ids)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("dtype", "share"), [("float32", 4), ("bfloat16", 2)])
def test_the_ledger_counts_a_half_or_a_quarter_for_matrices(dtype, share):
    config = tiny_model_config(dtype=dtype, vocab_size=1, mlp_dim=512, embed_dim=256)
    packed = replace(config, quantisation=Quantisation("int8"))
    args, limits = EngineArgs(kv_cache_memory=1 << 20), SchedulerConfig(1, 16, 16)
    whole, part = (
        size_pool(args, EngineConfig(each, CacheConfig(2), limits), dummy_params(each, 0))
        for each in (config, packed)
    )
    assert 1 / share < part.weights_bytes / whole.weights_bytes < 1.1 / share  # the rest: scales


@pytest.mark.parametrize("scheme", [Quantisation("int8"), Quantisation("gptq", 4, 32)])
def test_dummy_weights_are_packed_too(scheme):
    layer = dummy_params(tiny_model_config(quantisation=scheme), 0).layers[0]
    assert is_quantised(layer.w_down) and layer.w_down.bits == scheme.bits
    assert 0.5 < np.asarray(dequantise(layer.w_down)).std() * 128**0.5 < 1.5


def test_a_gguf_file_is_neither_gptq_nor_awq(tmp_path):
    file = make_tiny_gguf(tmp_path / "m.gguf")
    with pytest.raises(OptionError, match=r"--quantization awq .* of floats: .* choose int8"):
        load(file, "awq")


def test_the_flag_knows_its_values():
    with pytest.raises(OptionError, match="--quantization must be one of awq, gptq, int8"):
        EngineArgs.of(quantization="fp8")
