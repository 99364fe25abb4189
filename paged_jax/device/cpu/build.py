"""Compiling the kernels with the machine's own C++ compiler, once per machine and version.

The library is kept in the user's cache folder under a name made of everything it depends on, so
that a changed source, compiler, CPU or jaxlib never meets an old one.
"""

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import jax.ffi

from paged_jax.config import cache_folder

SOURCES = Path(__file__).parent / "csrc"
COMPILERS = ("c++", "g++", "clang++")
IS_ARM = platform.machine() in ("arm64", "aarch64")
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-ffp-contract=fast",
    "-mcpu=native" if IS_ARM else "-march=native",
)
TIMEOUT_S = 300

logger = logging.getLogger("paged_jax")


class BuildError(RuntimeError):
    """The kernels cannot be compiled here. The message says why and what would help."""


def library() -> Path:
    """Return the compiled kernels, compiling them if this is the first time.

    Raises:
        BuildError: there is no compiler, or it failed.
    """
    compiler = find_compiler()
    path = cache_folder() / "kernels" / f"{_key(compiler)}.so"
    if not path.exists():
        start = time.monotonic()
        compile_library(compiler, sorted(SOURCES.glob("*.cc")), path)
        logger.info("Compiled the CPU kernels in %.1f s", time.monotonic() - start)
    return path


def find_compiler() -> str:
    """Return the path of $CXX, or of the first C++ compiler there is.

    Raises:
        BuildError: there is none.
    """
    chosen = os.environ.get("CXX")
    found = [path for name in ((chosen,) if chosen else COMPILERS) if (path := shutil.which(name))]
    if not found:
        missing = f"$CXX, {chosen}, is not there" if chosen else "there is no C++ compiler"
        raise BuildError(f"{missing}: install g++ or clang++")
    return found[0]


def compile_library(
    compiler: str, sources: Sequence[Path], path: Path, *, flags: Sequence[str] = FLAGS
) -> None:
    """Compile sources side by side and link them; processes that do so at once do not meet.

    Raises:
        BuildError: the compiler failed; holds the end of what it said.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, ThreadPoolExecutor() as threads:
        objects = [str(Path(folder, source.stem + ".o")) for source in sources]
        command = [compiler, *flags, "-isystem", jax.ffi.include_dir(), "-c"]
        jobs = [[*command, str(file), "-o", to] for file, to in zip(sources, objects, strict=True)]
        list(threads.map(_run, jobs))
        linked = str(Path(folder, "kernels.so"))
        _run([compiler, *flags, "-shared", *objects, "-o", linked])
        os.replace(linked, path)


def _key(compiler: str) -> str:
    """A hash of the sources, and of what the compiler is and takes this CPU for."""
    digest = hashlib.sha256(repr((compiler, FLAGS, version("jaxlib"))).encode())
    macros = _run([compiler, *FLAGS, "-dM", "-E", "-x", "c++", os.devnull])
    digest.update(macros.encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def _run(command: Sequence[str]) -> str:
    """Run the compiler; return what it prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(
            f"{command[0]} could not be run ({error}): repair it or set $CXX"
        ) from error
    if done.returncode:
        raise BuildError(
            f"{command[0]} failed: {done.stderr.strip()[-2000:]}: repair it or set $CXX"
        )
    return done.stdout
