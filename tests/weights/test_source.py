"""What a user may call a model, and the one sentence that answers a wrong name."""

from pathlib import Path

import huggingface_hub
import pytest
from tiny import make_tiny_folder

from paged_jax.config import ModelError
from paged_jax.weights import source
from paged_jax.weights.source import ModelSource, resolve_model


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Answers downloads with a folder, or raises `error`; remembers how it was called."""

    class Hub:
        def __init__(self):
            self.error: Exception | None = None
            self.calls: list[tuple[str, list[str]]] = []

        def download(self, model, *, allow_patterns):
            self.calls.append((model, allow_patterns))
            if self.error:
                raise self.error
            return str(make_tiny_folder(tmp_path / "snapshot"))

    fake = Hub()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.download)
    return fake


def test_a_folder_with_a_config_is_a_model(tmp_path, hub):
    folder = make_tiny_folder(tmp_path / "m")
    assert resolve_model(str(folder)) == ModelSource("folder", folder, str(folder))
    assert not hub.calls


def test_a_gguf_file_is_a_model(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    assert resolve_model(str(file)) == ModelSource("gguf", file, str(file))


def test_no_name_is_the_default_model(monkeypatch):
    monkeypatch.setattr(source, "default_model_path", lambda: Path("/cache/smol.gguf"))
    expected = ModelSource("gguf", Path("/cache/smol.gguf"), "SmolLM2-135M-Instruct")
    assert resolve_model(None) == expected


@pytest.mark.parametrize("name", ["org/model-1.5", "model"])
def test_an_id_is_downloaded_without_pickles_or_code(tmp_path, hub, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    found = resolve_model(name)
    assert found == ModelSource("folder", tmp_path / "snapshot", name)
    ((model, patterns),) = hub.calls
    assert model == name and "*.safetensors" in patterns
    assert not any(pattern.endswith(("bin", "py", "*")) for pattern in patterns)


def test_descriptions_alone_can_be_downloaded(hub):
    resolve_model("org/model", with_weights=False)
    assert "*.safetensors" not in hub.calls[0][1]


@pytest.mark.parametrize(
    "error", [OSError("no network"), ValueError("401\nlong advice"), RuntimeError()]
)
def test_a_failed_download_is_one_sentence(hub, error):
    hub.error = error
    with pytest.raises(ModelError, match="org/model is no local folder and could not be") as caught:
        resolve_model("org/model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["/no/such/model", "./m", "a/b/c", "~/m", "no.gguf", "a b", ""])
def test_a_path_that_is_not_there_is_no_download(hub, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError):
        resolve_model(name)
    assert not hub.calls


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"has no config\.json"):
        resolve_model(str(tmp_path))


def test_another_kind_of_file_is_refused(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(ModelError, match=r"give a folder, a \.gguf file"):
        resolve_model(str(file))
