"""What importing costs: the package and its host side load no jax and no numpy."""

import subprocess
import sys

import pytest

import paged_jax


@pytest.mark.parametrize(
    "module", ["paged_jax", "paged_jax.engine_args", "paged_jax.host.scheduler", "paged_jax.flags"]
)
def test_importing_loads_neither_jax_nor_numpy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('jax', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", paged_jax.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(paged_jax, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = paged_jax.nothing
