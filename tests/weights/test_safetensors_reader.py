"""Folders of safetensors: shards, odd contents, hostile names; refusals name file and tensor."""

import json
import logging
import pickle
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from tiny import make_tiny_folder, tiny_config_json, tiny_tensors

from paged_jax.config import ModelError
from paged_jax.models.params import ModelParams
from paged_jax.weights.load import load_params, read_config
from paged_jax.weights.source import ModelSource

INDEX = "model.safetensors.index.json"


def load(folder: Path, dtype: str = "float32") -> ModelParams:
    source = ModelSource("folder", folder, "tiny")
    return load_params(source, read_config(source, dtype=dtype), progress=False)


def rewrite(folder: Path, *, drop: str = "", **tensors: np.ndarray) -> None:
    """Change tensors of model.safetensors; in names, "__" stands for "."."""
    path = folder / "model.safetensors"
    changed = safetensors.numpy.load_file(path)
    changed |= {name.replace("__", "."): array for name, array in tensors.items()}
    changed.pop(drop, None)
    safetensors.numpy.save_file(changed, path)


def shard(folder: Path, names: tuple[str, str] = ("a.safetensors", "b.safetensors")) -> dict:
    """Split model.safetensors in two; return the index."""
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts = {
        names[0]: dict(list(tensors.items())[::2]),
        names[1]: dict(list(tensors.items())[1::2]),
    }
    for name, part in parts.items():
        safetensors.numpy.save_file(part, folder / name)
    index = {"weight_map": {tensor: name for name, part in parts.items() for tensor in part}}
    (folder / INDEX).write_text(json.dumps(index))
    return index


def same(one: ModelParams, other: ModelParams) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


def test_matrices_arrive_as_in_out(tmp_path):
    tensors = tiny_tensors(tiny_config_json())
    params = load(make_tiny_folder(tmp_path))
    name = "model.layers.1.mlp.down_proj.weight"
    assert np.array_equal(params.layers[1].w_down, tensors[name].T)
    assert np.array_equal(params.embed, tensors["model.embed_tokens.weight"])
    assert np.array_equal(params.unembed, tensors["lm_head.weight"].T)
    assert np.array_equal(params.final_norm, tensors["model.norm.weight"])


def test_shards_equal_the_single_file(tmp_path):
    whole = load(make_tiny_folder(tmp_path / "whole"))
    shard(make_tiny_folder(tmp_path / "shards"))
    assert same(whole, load(tmp_path / "shards"))


@pytest.mark.parametrize("stored", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_stored_type_is_converted(tmp_path, stored, dtype):
    folder = make_tiny_folder(tmp_path)
    half = {name: a.astype(stored) for name, a in tiny_tensors(tiny_config_json()).items()}
    safetensors.numpy.save_file(half, folder / "model.safetensors")
    embed = load(folder, dtype).embed
    assert embed.dtype == dtype
    assert np.array_equal(embed, half["model.embed_tokens.weight"].astype(embed.dtype))


@pytest.mark.parametrize("head", ["none", "equal", "other"])
def test_a_tied_model_s_extra_head_is_skipped(tmp_path, caplog, head):
    folder = make_tiny_folder(tmp_path, tie_word_embeddings=True)
    plain = load(folder)
    embed = np.asarray(plain.embed)
    if head != "none":
        rewrite(folder, lm_head__weight=embed.copy() if head == "equal" else embed[::-1].copy())
    params = load(folder)
    assert params.unembed is None and same(params, plain)
    assert not caplog.records


def test_an_untied_model_needs_its_head(tmp_path):
    rewrite(make_tiny_folder(tmp_path), drop="lm_head.weight")
    with pytest.raises(ModelError, match=r"tensor lm_head\.weight is missing"):
        load(tmp_path)


def test_a_missing_tensor_is_named(tmp_path):
    rewrite(make_tiny_folder(tmp_path), drop="model.layers.1.mlp.up_proj.weight")
    with pytest.raises(
        ModelError, match=r"tensor model\.layers\.1\.mlp\.up_proj\.weight is missing"
    ):
        load(tmp_path)


def test_a_wrong_shape_is_named_with_the_right_one(tmp_path):
    rewrite(make_tiny_folder(tmp_path), model__norm__weight=np.ones(63, np.float32))
    message = r"model\.safetensors: tensor model\.norm\.weight has shape \[63\], expected \[64\]"
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


def test_a_wrong_type_is_named(tmp_path):
    rewrite(make_tiny_folder(tmp_path), model__norm__weight=np.ones(64, np.int32))
    with pytest.raises(ModelError, match=r"model\.norm\.weight has type I32, not F32, F16, BF16"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(np.nan, "float32"), (np.inf, "bfloat16"), (-np.inf, "float16"), (1e6, "float16")],
)
def test_a_value_that_is_not_finite_is_refused(tmp_path, value, dtype):
    norm = np.ones(64, np.float32)
    norm[5] = value
    rewrite(make_tiny_folder(tmp_path), model__norm__weight=norm)
    with pytest.raises(ModelError, match=r"tensor model\.norm\.weight holds NaN, infinity, or"):
        load(tmp_path, dtype)


def test_unknown_tensors_are_mentioned_and_rotary_tables_are_not(tmp_path, caplog):
    folder = make_tiny_folder(tmp_path)
    table = np.ones(8, np.float32)
    rewrite(folder, model__layers__0__self_attn__rotary_emb__inv_freq=table)
    load(folder)
    assert not caplog.records
    rewrite(folder, model__extra=table)
    with caplog.at_level(logging.WARNING, "paged_jax"):
        load(folder)
    assert "1 tensors are not used: model.extra" in caplog.text


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"\x08\0\0\0\0\0\0\0not json"])
def test_an_unreadable_file_is_refused(tmp_path, content):
    (make_tiny_folder(tmp_path) / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        load(tmp_path)


def test_a_truncated_file_is_refused(tmp_path):
    path = make_tiny_folder(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        load(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    shard(make_tiny_folder(tmp_path))
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"the shard b\.safetensors is missing"):
        load(tmp_path)


def test_a_tensor_missing_from_its_shard_is_named(tmp_path):
    index = shard(make_tiny_folder(tmp_path))
    swapped = {"a.safetensors": "b.safetensors", "b.safetensors": "a.safetensors"}
    index["weight_map"] = {t: swapped[name] for t, name in index["weight_map"].items()}
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"[ab]\.safetensors: tensor \S+ is missing, though"):
        load(tmp_path)


@pytest.mark.parametrize("is_absolute", [True, False])
def test_a_shard_outside_the_folder_is_refused(tmp_path, is_absolute):
    folder = make_tiny_folder(tmp_path / "m")
    outside = (folder / "model.safetensors").rename(tmp_path / "out.safetensors")
    name = str(outside) if is_absolute else "../out.safetensors"
    (folder / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(ModelError, match="not the plain name of a file"):
        load(folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": 3}'])
def test_a_broken_index_is_refused(tmp_path, content):
    shard(make_tiny_folder(tmp_path))
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(ModelError, match="weight_map cannot be read"):
        load(tmp_path)


class Marker:
    """Unpickling this writes a file."""

    def __init__(self, path: Path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_pickle_is_never_opened(tmp_path):
    folder, marker = make_tiny_folder(tmp_path / "m"), tmp_path / "marker"
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Marker(marker)))
    with pytest.raises(ModelError, match="pickled weights can run code"):
        load(folder)
    assert not marker.exists()


def test_code_in_the_folder_is_never_run(tmp_path):
    marker = tmp_path / "marker"
    folder = make_tiny_folder(tmp_path / "m", auto_map={"AutoConfig": "configuration_x.X"})
    for name in ("configuration_x.py", "modeling_x.py", "tokenizer.py"):
        (folder / name).write_text(f"open({str(marker)!r}, 'w')")
    load(folder)
    assert not marker.exists()
