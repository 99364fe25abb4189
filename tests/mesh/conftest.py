"""Tests on eight virtual CPU devices, in a process of their own: JAX counts devices once."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest
from tiny import make_tiny_folder

from paged_jax import LLM
from paged_jax.compiled import programs

NUM_DEVICES = 8
SMALL: dict[str, object] = {
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_batched_tokens": 8,
    "max_num_seqs": 4,
}
BLOCKS_ALONE, BLOCKS_OF_MESH = 65, 10  # one device has room for everything; a mesh preempts
SIZE_OPTIONS = ("data_parallel_size", "pipeline_parallel_size", "tensor_parallel_size")
MODELS = {
    "llama": {"family": "llama", "num_attention_heads": 8, "num_key_value_heads": 8},
    "qwen3": {"family": "qwen3", "num_attention_heads": 16, "num_key_value_heads": 8},
    "qwen2": {"family": "qwen2", "num_attention_heads": 8, "num_key_value_heads": 2},
    "tied": {
        "family": "llama",
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 96,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
        "num_hidden_layers": 3,
    },
}

if os.environ.get("PAGED_JAX_TEST_DEVICES") != str(NUM_DEVICES):
    collect_ignore_glob = ["test_mesh_*.py"]  # test_on_eight_devices.py runs them


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make the checkpoint of a model by name, once."""
    root, made = tmp_path_factory.mktemp("models"), {}

    def make(name: str) -> Path:
        if name not in made:
            sizes = {"head_dim": 16, "hidden_size": 64} | MODELS[name]
            made[name] = make_tiny_folder(root / name, **sizes)
        return made[name]

    return make


@pytest.fixture(scope="session")
def engine_on(folder: Callable[[str], Path]) -> Iterator[Callable[..., LLM]]:
    """Make an engine of a model on a mesh, once for each set of options.

    A mesh is a tensor parallel size, or those of data, stage and tensor.
    """
    made: dict[tuple, LLM] = {}

    def make(name: str, mesh: int | tuple[int, int, int] = 1, **options: object) -> LLM:
        key = (name, mesh, *sorted(options.items()))
        if key not in made:
            sizes = mesh if isinstance(mesh, tuple) else (1, 1, mesh)
            flags = dict(zip(SIZE_OPTIONS, sizes, strict=True))
            blocks = BLOCKS_ALONE if mesh == 1 else BLOCKS_OF_MESH
            small = SMALL | {"num_gpu_blocks_override": blocks}
            made[key] = LLM(folder(name), **(small | flags | options))
        return made[key]

    yield make
    for llm in made.values():
        llm.close()


@pytest.fixture(scope="session", autouse=True)
def _enough_devices() -> None:
    if "PAGED_JAX_TEST_DEVICES" in os.environ:
        assert jax.device_count() == NUM_DEVICES


@pytest.fixture(scope="session", autouse=True)
def _one_shape_of_each_program() -> Iterator[None]:
    """Pad every step to the largest shape: other shapes are the business of tests/engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "token_buckets", lambda most, *, smallest: (most,))
        patch.setattr(programs, "row_buckets", lambda most: (most,))
        yield
