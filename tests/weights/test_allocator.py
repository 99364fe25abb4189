"""Memory that reading weights has used is the system's again."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from contextlib import nullcontext
from pathlib import Path
import numpy as np
from paged_jax.weights.allocator import large_buffers_given_back

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

np.ones(20 << 20, np.uint8)  # freed: from now on glibc keeps smaller ones
with large_buffers_given_back() if sys.argv[1] == "given back" else nullcontext():
    before = resident()
    large = [(np.ones(4 << 20, np.uint8), np.ones(100_000, np.uint8)) for _ in range(20)]
    small = [pair[1] for pair in large]  # lie between the large ones
    del large
    print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ONLY LINUX HAS GLIBC")
def test_large_buffers_are_the_system_s_again() -> None:
    kept = {
        how: int(subprocess.check_output([sys.executable, "-c", PROGRAM, how]))
        for how in ("kept", "given back")
    }
    assert kept["kept"] > 40 and kept["given back"] < 8, "MiB"
