"""Strict JAX in every test: no silent promotion of dtypes or ranks.

One CPU device, but for tests/mesh.
"""

import importlib.util
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from paged_jax.device.cpu import kernels

DEVICES_VARIABLE = "PAGED_JAX_TEST_DEVICES"  # tests/mesh starts a pytest of its own with 8

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", int(os.environ.get(DEVICES_VARIABLE, "1")))
# The engines of the tests share compiled programs, also from one run to the next.
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".cache" / "xla"))


@pytest.fixture
def rng() -> np.random.Generator:
    """A seeded numpy generator, the same in every test."""
    return np.random.default_rng(0)


@pytest.fixture
def getkey():
    """A function that returns a fresh JAX key at each call."""
    keys = iter(jax.random.split(jax.random.key(0), 1000))
    return lambda: next(keys)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run; `-ra` lists each with its reason."""
    missing = {
        "gpu": None if jax.default_backend() == "gpu" else "needs an NVIDIA GPU; JAX finds none",
        "parity": None
        if importlib.util.find_spec("torch")
        else "needs torch: pip install '.[parity]'",
    }
    for marker, reason in {"install": "installs everything anew", "slow": "takes long"}.items():
        if marker not in config.option.markexpr:
            missing[marker] = f"{reason}: run with -m {marker}"
    if any(item.get_closest_marker("cpu_kernels") for item in items):
        none = "NO CPU KERNELS: needs a CPU and a C++ compiler"
        missing["cpu_kernels"] = None if kernels.are_usable() else none
    for item in items:
        for marker, reason in missing.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
