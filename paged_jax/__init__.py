"""paged_jax: a functional JAX inference engine with a paged KV cache and an OpenAI-compatible
server.

Public names load lazily: importing the package imports no jax.
"""

import time
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paged_jax.async_engine import AsyncEngine
    from paged_jax.compiled.step import engine_step
    from paged_jax.engine.engine import Engine
    from paged_jax.engine_args import EngineArgs
    from paged_jax.host.beams import BeamSearchParams
    from paged_jax.host.invalid_request import InvalidRequest
    from paged_jax.host.pooling import PoolingParams
    from paged_jax.host.sampling_params import SamplingParams
    from paged_jax.host.saved import SnapshotError
    from paged_jax.host.structured_outputs import StructuredOutputsParams
    from paged_jax.host.taps import AddVector, SetVector, Taps, ZeroHead
    from paged_jax.llm import LLM
    from paged_jax.outputs import Captures, CompletionOutput, Logprob, RequestOutput
    from paged_jax.scoring import Scores, log_probabilities, score

try:
    __version__ = version("paged_jax")
except PackageNotFoundError:  # running from a source tree that was not installed
    __version__ = "0.0.0"

IMPORTED_S = time.monotonic()  # where a program's start is timed from

_HOMES = {
    "AddVector": "paged_jax.host.taps",
    "AsyncEngine": "paged_jax.async_engine",
    "BeamSearchParams": "paged_jax.host.beams",
    "Captures": "paged_jax.outputs",
    "CompletionOutput": "paged_jax.outputs",
    "Engine": "paged_jax.engine.engine",
    "EngineArgs": "paged_jax.engine_args",
    "InvalidRequest": "paged_jax.host.invalid_request",
    "LLM": "paged_jax.llm",
    "Logprob": "paged_jax.outputs",
    "PoolingParams": "paged_jax.host.pooling",
    "RequestOutput": "paged_jax.outputs",
    "SamplingParams": "paged_jax.host.sampling_params",
    "Scores": "paged_jax.scoring",
    "SetVector": "paged_jax.host.taps",
    "SnapshotError": "paged_jax.host.saved",
    "StructuredOutputsParams": "paged_jax.host.structured_outputs",
    "Taps": "paged_jax.host.taps",
    "ZeroHead": "paged_jax.host.taps",
    "engine_step": "paged_jax.compiled.step",
    "log_probabilities": "paged_jax.scoring",
    "score": "paged_jax.scoring",
}

__all__ = [
    "LLM",
    "AddVector",
    "AsyncEngine",
    "BeamSearchParams",
    "Captures",
    "CompletionOutput",
    "Engine",
    "EngineArgs",
    "InvalidRequest",
    "Logprob",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
    "Scores",
    "SetVector",
    "SnapshotError",
    "StructuredOutputsParams",
    "Taps",
    "ZeroHead",
    "__version__",
    "engine_step",
    "log_probabilities",
    "score",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'paged_jax' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
