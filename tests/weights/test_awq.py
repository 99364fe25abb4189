"""AWQ checkpoints: every group size bit for bit, the model they make, and what is refused."""

from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from drive import drive
from loading import LoadedModel, load_model
from packers import change_quantization, change_tensors, make_packed_folders, pack_awq
from tiny import oracle_logits

from paged_jax.config import ModelError, OptionError, Quantisation
from paged_jax.models.params import ModelParams
from paged_jax.models.quantised import dequantise, is_quantised
from paged_jax.weights.awq import read_awq
from paged_jax.weights.safetensors_reader import SafetensorsFolder
from paged_jax.weights.source import ModelSource

FACTS = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def load(folder: Path, quantization: str | None = None) -> LoadedModel:
    source = ModelSource("folder", folder, "tiny")
    return load_model(source, quantization=quantization)


def same(one: ModelParams, other: ModelParams) -> bool:
    unpack = lambda leaf: dequantise(leaf) if is_quantised(leaf) else leaf  # noqa: E731
    floats = (jax.tree.map(unpack, params, is_leaf=is_quantised) for params in (one, other))
    return jax.tree.all(jax.tree.map(np.array_equal, *floats))


@pytest.fixture
def folders(tmp_path) -> tuple[Path, Path]:
    return make_packed_folders(tmp_path, pack_awq, **FACTS)


@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_packed_matrices_equal_their_floats_bit_for_bit(tmp_path, group_size):
    pack = partial(pack_awq, group_size=group_size)
    packed, plain = make_packed_folders(tmp_path, pack, **FACTS | {"group_size": group_size})
    loaded = load(packed)
    assert all(is_quantised(layer.w_up) for layer in loaded.params.layers)
    assert not is_quantised(loaded.params.unembed)
    assert same(loaded.params, load(plain).params)


def test_logits_equal_the_oracle_s_on_the_dequantised_weights(folders):
    loaded, floats, ids = load(folders[0]), load(folders[1]), list(range(3, 20))
    (actual,) = drive(loaded.config, loaded.params, [ids])
    expected = oracle_logits(floats.config, floats.params, ids)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-3)


def test_modules_that_were_not_converted_are_floats(folders):
    packed, plain = folders
    stem = "model.layers.0.mlp.down_proj."
    change_quantization(packed, modules_to_not_convert=["layers.0.mlp.down_proj", "lm_head"])
    floats = safetensors.numpy.load_file(plain / "model.safetensors")
    gone = dict.fromkeys(stem + part for part in ("qweight", "qzeros", "scales"))
    change_tensors(packed, gone | {stem + "weight": floats[stem + "weight"]})
    params = load(packed).params
    assert not is_quantised(params.layers[0].w_down) and is_quantised(params.layers[1].w_down)
    assert same(params, load(plain).params)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 8}, "bits must be 4, not 8"),
        ({"version": "gemv"}, "version must be gemm, not 'gemv'"),
        ({"zero_point": False}, "zero_point must be true, not False"),
        ({"group_size": 64}, r"qzeros has shape \[2, 8\], expected \[1, 8\]"),
    ],
)
def test_a_description_that_cannot_be_computed_is_refused_by_name(folders, changes, message):
    change_quantization(folders[0], **changes)
    with pytest.raises(ModelError, match=rf"packed/.*{message}"):
        load(folders[0])


def test_the_version_may_be_written_in_capitals(folders):
    change_quantization(folders[0], version="GEMM")
    assert load(folders[0]).config.quantisation == Quantisation("awq", 4, 32)


def test_outputs_that_do_not_fill_a_word_are_refused(tmp_path, rng):
    parts = {f"x.{name}": array for name, array in pack_awq(rng, 32, 8).parts.items()}
    safetensors.numpy.save_file(parts, tmp_path / "model.safetensors")
    folder = SafetensorsFolder(tmp_path, is_tied=False)
    with pytest.raises(ModelError, match="must have a multiple of 8 outputs, not 12"):
        read_awq(folder, "x.", (32, 12), Quantisation("awq", 4, 32))


def test_a_flag_that_contradicts_the_checkpoint_says_what_it_is(folders):
    with pytest.raises(OptionError, match=r"--quantization gptq .* is packed by awq"):
        load(folders[0], "gptq")
    assert load(folders[0], "awq").config.quantisation == Quantisation("awq", 4, 32)
