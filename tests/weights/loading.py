"""A whole model out of a source, for comparison."""

from dataclasses import dataclass

from paged_jax.config import ModelConfig
from paged_jax.models.params import ModelParams
from paged_jax.weights.load import load_params, read_config
from paged_jax.weights.source import ModelSource


@dataclass(frozen=True)
class LoadedModel:
    config: ModelConfig
    params: ModelParams


def load_model(source: ModelSource, *, quantization: str | None = None) -> LoadedModel:
    config = read_config(source, quantization=quantization)
    return LoadedModel(config, load_params(source, config, progress=False))
