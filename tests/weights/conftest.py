"""The formats are compared as they are read: matrices are not packed for the CPU kernels."""

import pytest


@pytest.fixture(autouse=True)
def plain_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGED_JAX_CPU_KERNELS", "off")
