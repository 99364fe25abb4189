"""Servers over a FakeEngine."""

from collections.abc import Iterator

import pytest
from fake_engine import FakeEngine
from served_engine import Served, serve


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server whose engine answers at once."""
    yield from serve(FakeEngine())


@pytest.fixture
def slow() -> Iterator[Served]:
    """A server of its own whose engine makes a token every 10 ms."""
    yield from serve(FakeEngine(step_s=0.01))
