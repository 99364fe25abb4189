"""Runs the other tests of this folder where there are eight devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEVICES_VARIABLE = "PAGED_JAX_TEST_DEVICES"
FAST = "--xla_backend_optimization_level=0"  # compile sooner; the arithmetic is the same
HERE = Path(__file__).parent


@pytest.mark.skipif(DEVICES_VARIABLE in os.environ, reason="this is the run on eight devices")
def test_everything_here_passes_on_eight_virtual_devices() -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FAST}"
    environment = os.environ | {DEVICES_VARIABLE: "8", "XLA_FLAGS": flags}
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]

    done = subprocess.run(
        [*command, str(HERE)], cwd=HERE.parents[1], env=environment, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
