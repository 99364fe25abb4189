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

DRIVERS = Path(__file__).parent / "cpu"
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compile_driver(name: str, to: Path, *flags: str) -> None:
    sources = ["-I", str(build.SOURCES), str(DRIVERS / name), "-pthread", "-o", str(to)]
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
    compile_driver("matmul_driver.cc", tmp_path / "driver", *SANITIZED, *flags)
    assert run(tmp_path / "driver") == "all products agree\n"


@pytest.mark.parametrize(("driver", "outcome"), [("top_k", "orders"), ("likeliest", "outputs")])
def test_sanitizers_find_nothing_in_the_largest(tmp_path: Path, driver: str, outcome: str) -> None:
    compile_driver(f"{driver}_driver.cc", tmp_path / "driver", *SANITIZED)
    assert run(tmp_path / "driver") == f"all {outcome} agree\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="ONLY x86_64 HAS THESE CPUS")
@pytest.mark.parametrize("driver", ["matmul", "attention", "top_k", "likeliest"])
@pytest.mark.parametrize("flags", [("-march=x86-64-v4", "-mavx512bf16"), ("-march=x86-64-v2",)])
def test_other_cpus_compile(tmp_path: Path, driver: str, flags: tuple[str, ...]) -> None:
    compile_driver(f"{driver}_driver.cc", tmp_path / "driver", "-O0", *flags)


@pytest.mark.parametrize("flags", [SANITIZED, ("-march=x86-64-v2",)], ids=["sanitized", "v2"])
def test_attention_gives_the_same_right_bits_on_any_number_of_threads(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    if "-march=x86-64-v2" in flags and platform.machine() != "x86_64":
        pytest.skip("ONLY x86_64 HAS THIS CPU")
    compile_driver("attention_driver.cc", tmp_path / "driver", *flags)
    assert run(tmp_path / "driver") == "all results agree\n"
