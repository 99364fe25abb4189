"""The compiled programs of an engine whose layers are cut into stages.

The backbone and the copies are one program a stage, each on its stage's devices; drawing belongs to
the last. Calls return before the devices are done, so that stages work side by side on the steps
that were launched.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from paged_jax.compiled.programs import COPIES, Drawn, Lower, ProgramKey, Programs, own_bytes
from paged_jax.compiled.staged_step import head_params, stage_backbone, stage_params
from paged_jax.compiled.step import BackboneOutput
from paged_jax.compiled.tapped_programs import TappedPrograms
from paged_jax.config import EngineConfig
from paged_jax.device.draw_extras import LogitsProcessor
from paged_jax.device.kv_pool import KVPool, copy_blocks
from paged_jax.device.logprobs import SampleOutput
from paged_jax.device.sampling_rows import SamplingRows
from paged_jax.device.sharding import POOL, REPLICATED, jit_on, struct_on
from paged_jax.device.stages import Stage, cut_into_stages
from paged_jax.device.step_batch import StepBatch, empty_batch
from paged_jax.models.params import ModelParams


def make_programs(config: EngineConfig, processor: LogitsProcessor | None = None) -> Programs:
    """Return the programs of an engine, in stages or with taps if it has any; not compiled yet."""
    kind = StagedPrograms if config.mesh.stage > 1 else Programs
    kind = TappedPrograms if config.has_taps else kind
    return kind(config, processor)


class StagedPrograms(Programs):
    """The programs of one engine, by stage and padded shape.

    Attributes:
        stages: first to last.
    """

    def __init__(self, config: EngineConfig, processor: LogitsProcessor | None = None):
        super().__init__(config, processor)
        self.stages = cut_into_stages(self.mesh, config.model.num_layers)
        self.draw_mesh = self.stages[-1].mesh
        self._stage_functions = [
            partial(stage_backbone, config=config.model, layers=stage.layers)
            for stage in self.stages
        ]

    def head(self, params: ModelParams) -> ModelParams:
        """Return what the last stage draws with."""
        return head_params(params)

    def backbone_jobs(
        self, params: ModelParams, pool: KVPool
    ) -> Iterator[tuple[ProgramKey, Lower]]:
        """Each backbone's key, and what traces it, largest first."""
        for tokens in reversed(self.token_buckets):
            for index in range(len(self.stages)):
                lower = partial(self.lower_stage, params, pool, tokens, index)
                yield (f"backbone {index}", tokens), lower

    def copy_jobs(self, pool: KVPool) -> Iterator[tuple[ProgramKey, Lower]]:
        """The programs that copy blocks."""
        ids = np.zeros(COPIES, np.int32)
        for index, stage in enumerate(self.stages):
            arguments = (pool.part(stage.layers), ids, ids)
            jitted = jit_on(stage.mesh, copy_blocks, arguments, outs=POOL, donate=(0,))
            yield (f"copy {index}", COPIES), partial(jitted.lower, *arguments)

    def lower_stage(self, params: ModelParams, pool: KVPool, tokens: int, index: int) -> Any:
        """Trace one stage's backbone for a token bucket; `pool` may be abstract."""
        stage, config = self.stages[index], self.config.model
        shape, dtype = (tokens, config.embed_dim), np.dtype(config.activation_dtype)
        hidden = struct_on(stage.mesh, shape, dtype, REPLICATED)
        arguments = (
            stage_params(params, stage.layers, config),
            pool.part(stage.layers),
            empty_batch(self.batch_shape(tokens)),
            None if index == 0 else hidden,
        )
        function, outs = self._stage_functions[index], (REPLICATED, POOL)
        return jit_on(stage.mesh, function, arguments, outs=outs, donate=(1,)).lower(*arguments)

    def run_backbone(
        self, params: ModelParams, pool: KVPool, batch: StepBatch, drawn: Drawn
    ) -> tuple[BackboneOutput, KVPool]:
        """Run the layers, stage by stage. Donate: pool."""
        assert not np.any(batch.drawn_by), "a token is pending that another stage draws"
        size, parts = batch.tokens.shape[0], list[KVPool]()
        given: Any = None
        for index, stage in enumerate(self.stages):
            mine = stage_params(params, stage.layers, self.config.model)
            arguments = (mine, pool.part(stage.layers), batch, _moved(given, stage))
            function = self._stage_functions[index]
            given, part = self.call(f"backbone {index}", size, function, *arguments)
            parts.append(part)
        return given, KVPool.joined(parts)

    def run_draw(
        self, params: ModelParams, out: BackboneOutput, rows: SamplingRows
    ) -> tuple[SampleOutput, Drawn]:
        """Draw one token per row on the last stage; they reach the first one by the host."""
        return super().run_draw(params, out, rows)[0], self.nothing_drawn()

    def copy(self, pool: KVPool, source: np.ndarray, target: np.ndarray) -> KVPool:
        """Copy COPIES blocks on every stage. Donate: pool."""
        parts = [
            self.call(f"copy {index}", COPIES, copy_blocks, pool.part(stage.layers), source, target)
            for index, stage in enumerate(self.stages)
        ]
        return KVPool.joined(parts)

    def measure(self, params: ModelParams, pool: KVPool) -> int:
        """Compile each stage's largest backbone; return the most bytes that one needs itself."""
        tokens = self.token_buckets[-1]
        lowered = (self.lower_stage(params, pool, tokens, i) for i in range(len(self.stages)))
        return max(own_bytes(each.compile()) for each in lowered)


def _moved(array: jax.Array | None, stage: Stage) -> jax.Array | None:
    """Send what the stage before has given to a stage's devices, without waiting for it."""
    assert stage.mesh is not None, "a stage without devices"
    return None if array is None else jax.device_put(array, NamedSharding(stage.mesh, REPLICATED))
