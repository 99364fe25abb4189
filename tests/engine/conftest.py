"""One tiny checkpoint and one engine on it for all tests here; a test makes special ones."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from small_options import SMALL
from tiny import make_tiny_folder

from paged_jax import LLM
from paged_jax.models.params import ModelParams
from paged_jax.weights.load import load_params, read_config
from paged_jax.weights.source import resolve_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama checkpoint."""
    folder = tmp_path_factory.mktemp("tiny") / "llama"
    return make_tiny_folder(folder, max_position_embeddings=2048)


@pytest.fixture(scope="session")
def llm(tiny_folder: Path) -> Iterator[LLM]:
    """A roomy engine, shared."""
    with LLM(tiny_folder, **SMALL) as engine:
        yield engine


@pytest.fixture(scope="session")
def plain_params(tiny_folder: Path) -> ModelParams:
    """The checkpoint's parameters for the oracle, not packed for any kernel."""
    source = resolve_model(str(tiny_folder))
    config = read_config(source, dtype="float32")
    return load_params(source, replace(config, is_packed=False), progress=False)


@pytest.fixture
def make_llm(tiny_folder: Path) -> Iterator[Callable[..., LLM]]:
    """Make an engine with other options; closed at the end of the test."""
    made: list[LLM] = []

    def make(**options: object) -> LLM:
        made.append(LLM(tiny_folder, **(SMALL | options)))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
