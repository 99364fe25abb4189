"""The device's half of an engine: parameters, KV pool and compiled programs, and what the last step
drew. It runs the steps it is given, in their order, and waits for nothing that they draw.
"""

from collections.abc import Mapping
from dataclasses import replace

import jax

from paged_jax.compiled.compile_counter import CompileCounter
from paged_jax.compiled.programs import Drawn
from paged_jax.compiled.staged_programs import make_programs
from paged_jax.compiled.step import BackboneOutput
from paged_jax.config import EngineConfig
from paged_jax.device.draw_extras import LogitsProcessor
from paged_jax.device.kv_pool import init_pool
from paged_jax.device.logprobs import SampleOutput
from paged_jax.device.sampling_rows import draws
from paged_jax.device.step_batch import pack
from paged_jax.engine.launched import LaunchedStep
from paged_jax.engine.live_requests import LiveRequests
from paged_jax.engine.prompt_reading import read_prompts
from paged_jax.host.request import ScheduledStep, Sequence
from paged_jax.models.params import ModelParams


class Executor:
    """Runs scheduled steps on the device.

    Attributes:
        params: the model's, packed or divided as the programs take them.
        programs: compiled, by padded shape.
        pool: keys and values; donated to each step, and replaced by what it returns.
        compiles: counts the programs compiled since warm-up.
    """

    def __init__(
        self, config: EngineConfig, params: ModelParams, processor: LogitsProcessor | None
    ):
        self.params = params
        self.programs = make_programs(config, processor)
        self.pool = init_pool(config.model, config.cache, self.programs.mesh)
        self.programs.warm_up(params, self.pool)
        self.compiles = CompileCounter()
        self._block_size = config.cache.block_size
        self._drawn: Drawn = self.programs.nothing_drawn()

    def launch(
        self,
        work: ScheduledStep,
        live: LiveRequests,
        *,
        start_s: float,
        pending: Mapping[Sequence, int],
    ) -> LaunchedStep:
        """Start a step's programs.

        Args:
            live: says what the step's rows may draw, and is told what it reads of prompts.
            start_s: when the step was begun, on the monotonic clock.
            pending: the rows of the step before that drew tokens this one goes on from.
        """
        programs, chunks = self.programs, work.chunks
        with self.compiles.watch():
            if work.copies:
                self.pool = programs.run_copies(self.pool, work.copies)
            shape = programs.batch_shape(work.num_tokens)
            batch = pack(chunks, shape, self._block_size, pending=pending)
            batch, reads = live.taps.pack(chunks, batch)
            hidden, self.pool = programs.run_backbone(self.params, self.pool, batch, self._drawn)
            read_prompts(programs, self.params, chunks, hidden, live.answers)
            reads = reads and replace(reads, out=hidden.taps)
            launched = LaunchedStep(work, start_s, self._draw(work, hidden, live), reads)
        launched.start_copying()
        return launched

    def _draw(
        self, work: ScheduledStep, hidden: BackboneOutput, live: LiveRequests
    ) -> SampleOutput | None:
        drawn = draws(work.chunks)
        if not drawn:
            return None
        rows = self.programs.pack_rows(drawn, live.masks(drawn))
        out, self._drawn = self.programs.run_draw(self.params, hidden, rows)
        return out

    def close(self) -> None:
        """Free the device's memory. Nothing can be launched afterwards."""
        for leaf in jax.tree.leaves((self.pool, self.params)):
            if not leaf.is_deleted():
                leaf.delete()
