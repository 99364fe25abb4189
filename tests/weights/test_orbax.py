"""A model written as an Orbax checkpoint is the same model, and a damaged one is refused."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.numpy
from loading import load_model
from packers import make_packed_folders, pack_awq, pack_gptq
from tiny import make_tiny_folder, make_tiny_gguf

from paged_jax.config import ModelError
from paged_jax.convert import convert, main
from paged_jax.text.tokenizer import Tokenizer
from paged_jax.weights.load import default_sampling, open_checkpoint, read_config
from paged_jax.weights.source import resolve_model

FAMILIES = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 32},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def assert_same_model(one: Path, other: Path, **options) -> None:
    mine, theirs = (load_model(resolve_model(str(path)), **options) for path in (one, other))
    assert mine.config == theirs.config
    assert jax.tree.structure(mine.params) == jax.tree.structure(theirs.params)
    assert jax.tree.all(jax.tree.map(np.array_equal, mine.params, theirs.params))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_folder(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture
def converted(original: Path, tmp_path: Path) -> Path:
    convert(str(original), tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_every_family_comes_back(tmp_path, family) -> None:
    folder = make_tiny_folder(tmp_path / "model", family=family, **FAMILIES[family])
    convert(str(folder), tmp_path / "out")
    assert_same_model(folder, tmp_path / "out")
    assert_same_model(folder, tmp_path / "out", quantization="int8")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_file_of_every_family_comes_back(tmp_path, family) -> None:
    file = make_tiny_gguf(tmp_path / "m.gguf", family=family, quant="Q4_0")
    convert(str(file), tmp_path / "out", dtype="float32")
    assert_same_model(file, tmp_path / "out")
    one, other = Tokenizer.from_gguf(file), Tokenizer.from_folder(tmp_path / "out")
    text = "<|im_start|>the thing in the end<|im_end|>"
    assert one.encode(text) == other.encode(text)
    assert (one.templates, one.named_tokens) == (other.templates, other.named_tokens)


def test_rotary_divisors_of_a_gguf_file_come_back(tmp_path) -> None:
    divisors = {"rope_freqs.weight": np.linspace(1, 8, 8, dtype=np.float32)}
    file = make_tiny_gguf(tmp_path / "m.gguf", extra=divisors)
    convert(str(file), tmp_path / "out", dtype="float32")
    config = read_config(resolve_model(str(tmp_path / "out")))
    assert config.rope_scaling.divisors == tuple(divisors["rope_freqs.weight"])


@pytest.mark.parametrize(
    ("pack", "facts"), [(partial(pack_gptq, desc_act=True), GPTQ), (pack_awq, AWQ)]
)
def test_packed_matrices_stay_packed(tmp_path, pack: Callable, facts) -> None:
    packed, _ = make_packed_folders(tmp_path, pack, **facts)
    convert(str(packed), tmp_path / "out")
    assert_same_model(packed, tmp_path / "out")


def test_dtype_is_that_asked_for_and_told(original, tmp_path) -> None:
    assert main([str(original), str(tmp_path / "out"), "--dtype", "bfloat16"]) == 0
    source = resolve_model(str(tmp_path / "out"))
    config = read_config(source, dtype="")
    checkpoint, _ = open_checkpoint(source, config)
    assert config.dtype == "bfloat16"
    assert checkpoint.read("model.norm.weight", (slice(0, 64),)).dtype.name == "bfloat16"
    assert default_sampling(source) == default_sampling(resolve_model(str(original)))


def test_orbax_itself_reads_what_is_written(original, converted) -> None:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        restored = checkpointer.restore(converted / "orbax")
    expected = safetensors.numpy.load_file(original / "model.safetensors")
    assert restored.keys() == expected.keys()
    assert all(np.array_equal(restored[name], expected[name]) for name in expected)


def test_a_part_is_read_from_its_pieces_alone(original, converted, monkeypatch) -> None:
    name, part = "model.embed_tokens.weight", (slice(60, 100), slice(16, 32))
    monkeypatch.setattr("paged_jax.weights.orbax_writer.PIECE_BYTES", 2048)
    folder = converted.parent / "in pieces"
    convert(str(original), folder)
    source = resolve_model(str(folder))
    checkpoint, _ = open_checkpoint(source, read_config(source))
    read = []
    piece = checkpoint._piece
    monkeypatch.setattr(
        checkpoint, "_piece", lambda store, at, name: read.append(at) or piece(store, at, name)
    )
    expected = safetensors.numpy.load_file(original / "model.safetensors")[name]
    assert np.array_equal(checkpoint.read(name, part), expected[part])
    assert 1 < len(read) < len(checkpoint._tensors[name].checksums) / 4


def damage_arrays(folder: Path) -> None:
    file = max((folder / "orbax").glob("**/d/*"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def cut_arrays(folder: Path) -> None:
    file = max((folder / "orbax").glob("**/d/*"), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[: -file.stat().st_size // 2])


def lose_arrays(folder: Path) -> None:
    (folder / "orbax").rename(folder.parent / "elsewhere")


def lose_index(folder: Path) -> None:
    (folder / "orbax" / "manifest.ocdbt").unlink()


def cut_manifest(folder: Path) -> None:
    path = folder / "orbax_checkpoint.json"
    path.write_text(path.read_text()[:-40])


def change_manifest(key: str, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "orbax_checkpoint.json"
        facts = json.loads(path.read_text())
        for holder in (facts, facts["tensors"]["model.norm.weight"]):
            holder |= {key: value} if key in holder else {}
        path.write_text(json.dumps(facts))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_arrays, "is damaged, as its checksum differs: copy the folder again, or convert"),
        (cut_arrays, "cannot be read .*copy the folder again"),
        (lose_arrays, "orbax is missing, though .* lists it"),
        (lose_index, "cannot be opened .*copy the folder again"),
        (cut_manifest, r"orbax_checkpoint\.json is damaged .*copy the folder again"),
        (change_manifest("format", "other"), "was not written by python -m paged_jax.convert"),
        (change_manifest("version", 2), "of version 2, and this program reads 1: convert"),
        (change_manifest("shape", [32]), r"norm.weight has shape \[32\], expected \[64\]|damaged"),
        (change_manifest("dtype", "float16"), "norm.weight has another shape or type than"),
        (change_manifest("crc32", [1, 2]), "is damaged"),
        (change_manifest("piece", [0]), "is damaged"),
    ],
)
def test_what_is_damaged_is_refused_by_name(converted, damage, message) -> None:
    damage(converted)
    with pytest.raises(ModelError, match=message):
        load_model(resolve_model(str(converted)))


def test_a_foreign_orbax_checkpoint_is_refused(tmp_path) -> None:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "other", args=ocp.args.PyTreeSave({"w": np.ones(3)}))
    with pytest.raises(ModelError, match=r"not written by python -m paged_jax.convert: convert"):
        resolve_model(str(tmp_path / "other"))


def test_nothing_is_overwritten_and_nothing_half_written(original, converted, capsys) -> None:
    assert main([str(original), str(converted)]) == 1
    assert "exists already: choose a new folder" in capsys.readouterr().err
    (original.parent / "broken").mkdir(exist_ok=True)
    (original.parent / "broken" / "config.json").write_text("{}")
    assert main([str(original.parent / "broken"), str(converted.parent / "new")]) == 1
    assert {path.name for path in converted.parent.iterdir()} == {"out"}
