"""Configuration, sampling defaults and whole models from a source."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from drive import drive
from loading import load_model
from tiny import make_tiny_folder, make_tiny_gguf, oracle_logits, tiny_model_config

from paged_jax.config import ModelError
from paged_jax.weights.load import default_sampling, load_params, read_config
from paged_jax.weights.source import ModelSource


def source_of(path: Path) -> ModelSource:
    return ModelSource("gguf" if path.suffix == ".gguf" else "folder", path, "tiny")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("auto", "float32"),
        ("half", "float16"),
        ("float", "float32"),
        ("bfloat16", "bfloat16"),
    ],
)
def test_dtype_on_a_cpu(tmp_path, wanted, expected):
    folder = make_tiny_folder(tmp_path, torch_dtype="bfloat16")
    assert read_config(source_of(folder), dtype=wanted).dtype == expected


def test_auto_dtype_elsewhere_is_the_checkpoint_s(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    folder = make_tiny_folder(tmp_path / "m", torch_dtype="float16")
    assert read_config(source_of(folder)).dtype == "float16"
    file = make_tiny_gguf(tmp_path / "m.gguf")
    assert read_config(source_of(file)).dtype == "bfloat16"


def test_end_ids_of_the_generation_config_win(tmp_path):
    folder = make_tiny_folder(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    assert read_config(source_of(folder)).eos_token_ids == (2, 9)
    (folder / "generation_config.json").unlink()
    assert read_config(source_of(folder)).eos_token_ids == (2,)


@pytest.mark.parametrize("content", ["", "{", "[1]", "[" * 100_000, "\xff"])
def test_a_broken_description_is_refused_by_name(tmp_path, content):
    (tmp_path / "config.json").write_text(content, "latin-1")
    with pytest.raises(ModelError, match=r"config\.json"):
        read_config(source_of(tmp_path))


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_gguf_equals_the_folder(tmp_path, family):
    folder = load_model(source_of(make_tiny_folder(tmp_path / "m", family=family)))
    file = make_tiny_gguf(tmp_path / "m.gguf", family=family)
    gguf = load_model(source_of(file))
    assert jax.tree.structure(folder.params) == jax.tree.structure(gguf.params)
    assert jax.tree.all(jax.tree.map(np.array_equal, folder.params, gguf.params))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_loaded_model_computes_the_oracle_s_logits(tmp_path, family):
    loaded = load_model(source_of(make_tiny_gguf(tmp_path / "m.gguf", family=family)))
    ids = list(range(3, 20))
    (actual,) = drive(loaded.config, loaded.params, [ids])
    expected = oracle_logits(loaded.config, loaded.params, ids)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)


def test_dummy_weights_need_only_the_description(tmp_path):
    folder = make_tiny_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    config = read_config(source_of(folder))
    one, two = (
        load_params(source_of(folder), config, load_format="dummy", seed=seed) for seed in (0, 1)
    )
    assert one.embed.shape == (320, 64) and not np.array_equal(one.embed, two.embed)


def test_progress_is_shown_only_if_wanted_and_on_a_terminal(tmp_path, capsys, monkeypatch):
    source = source_of(make_tiny_folder(tmp_path))
    load_params(source, tiny_model_config())
    assert not capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    load_params(source, tiny_model_config(), progress=False)
    assert not capsys.readouterr().err
    load_params(source, tiny_model_config())
    assert "Loading weights" in capsys.readouterr().err


def test_sampling_defaults_are_those_the_model_sets(tmp_path):
    folder = make_tiny_folder(tmp_path)
    given = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "max_new_tokens": 7, "do_sample": False}
    facts = given | {"min_p": None, "repetition_penalty": 1.1, "eos_token_id": 2, "num_beams": 4}
    (folder / "generation_config.json").write_text(json.dumps(facts))
    assert default_sampling(source_of(folder)) == {
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "repetition_penalty": 1.1,
        "max_tokens": 7,
    }


def test_a_gguf_file_sets_no_sampling_defaults(tmp_path):
    assert default_sampling(source_of(make_tiny_gguf(tmp_path / "m.gguf"))) == {}


def test_a_bad_sampling_default_is_refused_by_name(tmp_path):
    folder = make_tiny_folder(tmp_path)
    (folder / "generation_config.json").write_text('{"temperature": "hot"}')
    with pytest.raises(ModelError, match=r"generation_config\.json: temperature must be"):
        default_sampling(source_of(folder))
