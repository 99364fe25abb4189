"""The engine of a pipeline: as many steps in flight as there are stages, so that none is idle.

A sequence whose token is being drawn is in no other step, so each step in flight has sequences of
its own; each takes its share of those there are. Chunks of one prompt may follow each other through
the stages.
"""

import time
from collections.abc import Sequence as Seq
from pathlib import Path

from paged_jax.engine.engine import Engine
from paged_jax.engine.launched import LaunchedStep
from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.host.saved import SnapshotError
from paged_jax.outputs import RequestDelta


class PipelinedEngine(Engine):
    """An Engine whose step launches one step and, once the pipeline is full, reads the oldest."""

    def check_size(self, prompt: Seq[int], params: SamplingParams) -> None:
        """Raise InvalidRequest if this can never be served, as a beam search by a pipeline."""
        if params.beams is not None:
            raise InvalidRequest(
                "use_beam_search needs a server with --pipeline-parallel-size 1", "use_beam_search"
            )
        super().check_size(prompt, params)

    def snapshot(self, path: str | Path) -> None:
        """Refuse: steps in flight are not captured."""
        raise SnapshotError("a snapshot needs --pipeline-parallel-size 1")

    def restore(self, path: str | Path) -> list[RequestDelta]:
        """Refuse: a pool in stages is not filled."""
        raise SnapshotError("restoring a snapshot needs --pipeline-parallel-size 1")

    def step(self) -> list[RequestDelta]:
        """Launch a step; deliver what the oldest drew if all stages have work, or none is left."""
        launched = self._launch_beside()
        if launched is not None:
            self._in_flight.append(launched)
        is_filling = launched is not None and len(self._in_flight) < self._num_lanes
        is_read = self._in_flight and not is_filling
        deltas = self._read(self._in_flight.popleft()) if is_read else []
        deltas += self._live.take_failed()
        if not self.scheduler.has_work:
            self._in_flight.clear()  # nobody wants what they draw
        return deltas

    def _launch_beside(self) -> LaunchedStep | None:
        """Start a step of sequences that no step in flight draws for."""
        start_s = time.monotonic()
        flying = [step.work for step in self._in_flight]
        return self._start(self.scheduler.schedule_beside(flying, self._num_lanes), start_s)

    @property
    def _num_lanes(self) -> int:
        """How many steps share the sequences."""
        return self.config.mesh.stage if self.config.async_scheduling else 1
