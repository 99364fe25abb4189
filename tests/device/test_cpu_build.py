"""The kernels' library: what is said where it cannot be built, and what makes a new one."""

import logging
import os
import threading
from pathlib import Path

import pytest

from paged_jax.device.cpu import build, kernels


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "paged_jax" / "kernels"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources that compile at once, in place of the real ones."""
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "one.cc").write_text('extern "C" int one() { return 1; }')
    monkeypatch.setattr(build, "SOURCES", folder)
    return folder


def test_no_compiler_is_one_warning_and_no_kernels(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.WARNING, "paged_jax"):
        found = kernels.library.__wrapped__()
    assert found is None
    assert [record.message for record in caplog.records] == [
        "The CPU kernels are not used, steps run slower on XLA alone: there is no C++ compiler: "
        "install g++ or clang++"
    ]


def test_a_wrong_cxx_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(build.BuildError, match="CXX, /nowhere/c"):
        build.find_compiler()


def test_the_switch_turns_them_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGED_JAX_CPU_KERNELS", "off")
    assert not kernels.are_usable()


@pytest.mark.cpu_kernels
def test_a_failing_compiler_is_quoted(cache: Path, small: Path) -> None:
    (small / "one.cc").write_text("this is not C++")
    with pytest.raises(build.BuildError, match=r"failed: .*this"):
        build.library()
    assert not list(cache.iterdir())


@pytest.mark.cpu_kernels
def test_a_library_is_built_once_and_anew_for_other_sources(cache: Path, small: Path) -> None:
    first = build.library()
    built = os.stat(first).st_mtime_ns
    assert build.library() == first and os.stat(first).st_mtime_ns == built
    (small / "one.h").write_text("// new")
    assert build.library() != first


@pytest.mark.cpu_kernels
def test_two_builds_at_once_leave_one_whole_library(cache: Path, small: Path) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(build.library())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths[0] == paths[1]
    assert list(cache.iterdir()) == [paths[0]]
