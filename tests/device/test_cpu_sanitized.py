"""The kernels under the address and undefined-behaviour sanitizers, and their other builds.

What only other CPUs have is covered as far as this one can: AVX512-BF16 by an emulated instruction
and by compiling for such a CPU.
"""

import platform
import subprocess
from pathlib import Path

import pytest

from paged_jax.device.cpu import build

pytestmark = pytest.mark.cpu_kernels

DRIVER = Path(__file__).parent / "cpu" / "matmul_driver.cc"
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compile_driver(to: Path, *flags: str) -> None:
    sources = ["-I", str(build.SOURCES), str(DRIVER), "-pthread", "-o", str(to)]
    command = [build.find_compiler(), *build.FLAGS, *flags, *sources]
    done = subprocess.run(command, capture_output=True, text=True)
    if "cannot find" in done.stderr or "unrecognized" in done.stderr:
        pytest.skip(f"THE COMPILER CANNOT DO THIS: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr


def run(program: Path) -> str:
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("flags", [(), ("-DPAGED_JAX_EMULATE_BF16_DOT",)])
def test_sanitizers_find_nothing(tmp_path: Path, flags: tuple[str, ...]) -> None:
    compile_driver(tmp_path / "driver", *SANITIZED, *flags)
    assert run(tmp_path / "driver") == "all products agree\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="ONLY x86_64 HAS THESE CPUS")
@pytest.mark.parametrize("flags", [("-march=x86-64-v4", "-mavx512bf16"), ("-march=x86-64-v2",)])
def test_other_cpus_compile(tmp_path: Path, flags: tuple[str, ...]) -> None:
    compile_driver(tmp_path / "driver", "-O1", *flags)
