"""A device whose programs return at once: an engine on it spends nothing but host time."""

from typing import Any

import numpy as np

from paged_jax.compiled.programs import Drawn, Programs
from paged_jax.compiled.step import BackboneOutput
from paged_jax.config import EngineConfig
from paged_jax.device.kv_pool import KVPool
from paged_jax.device.logprobs import SampleOutput
from paged_jax.device.sampling_rows import SamplingRows
from paged_jax.device.step_batch import StepBatch
from paged_jax.engine.engine import Engine
from paged_jax.models.params import ModelParams, abstract_params
from paged_jax.text.tokenizer import Tokenizer


class InstantPrograms(Programs):
    """Returns zeros of the right shapes, and letters as tokens."""

    def run_backbone(
        self, params: ModelParams, pool: KVPool, batch: StepBatch, drawn: Drawn
    ) -> tuple[BackboneOutput, KVPool]:
        """Return zeros at once."""
        zeros: Any = np.zeros((1, 1), np.float32)
        return BackboneOutput(hidden=zeros, sampled=zeros), pool

    def run_draw(
        self, params: ModelParams, out: BackboneOutput, rows: SamplingRows
    ) -> tuple[SampleOutput, Drawn]:
        """Return a letter for each row at once."""
        num_rows = rows.positions.shape[0]
        tokens: Any = np.full(num_rows, ord("a"), np.int32) + np.arange(num_rows) % 26
        zeros: Any = np.zeros(num_rows, np.int32)
        sampled = SampleOutput(
            tokens=tokens, logprob=zeros, rank=zeros, top_ids=zeros, top_logprobs=zeros
        )
        return sampled, tokens


def instant_engine(config: EngineConfig) -> Engine:
    """Return an engine on that device; `config` must have `enforce_eager`."""
    assert config.enforce_eager, "the engine would compile its programs"
    engine = Engine(config, abstract_params(config.model), Tokenizer.of_bytes())
    engine.executor.programs = InstantPrograms(config)
    return engine
