"""A run written down: what arrived, what every step was to compute, and what it drew.

One JSON object a line. The first holds the scheduler's limits; the others are what was done to the
scheduler, in order: add, fork, schedule, commit, branch, finish, abort, reset. `host.replay` does
it again. What is not among these, as restoring a snapshot, ends what can be replayed, and is noted.
The file holds prompts and answers as token ids: whoever reads it reads them.
"""

import json
import time
from collections.abc import Generator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args
from weakref import finalize

from paged_jax.config import CacheConfig, EngineConfig, OptionError, SchedulerConfig
from paged_jax.host.request import (
    FinishReason,
    Request,
    ScheduledStep,
    Sequence,
    Status,
    TokenDelta,
)
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.host.scheduler import Scheduler

VERSION = 1


class RecordingScheduler(Scheduler):
    """A scheduler that writes down what is done to it, each line at once."""

    def __init__(self, config: SchedulerConfig, cache: CacheConfig, path: Path):
        super().__init__(config, cache)
        try:
            self._file = path.open("w", buffering=1)
        except OSError as error:
            raise OptionError(f"--record {path} cannot be written: {error.strerror}") from error
        finalize(self, self._file.close)
        self._is_inside = False  # a call that another one makes is not written
        self._num_scheduled = 0
        self._numbers: dict[int, int] = {}  # of the steps not committed yet, by identity
        self._num_resets = 0
        self._known: set[str] = set()  # requests whose beginning is in the file
        self._write("start", version=VERSION, limits=asdict(config), cache=asdict(cache))

    def add(self, request: Request) -> Sequence:
        """Queue a request, and write it down once it is taken."""
        sequence = super().add(request)
        self._known.add(request.id)
        if not self._is_inside:
            self._write("add", request=request_to_json(request))
        return sequence

    def fork(self, request: Request, parent: Sequence) -> Sequence:
        """Start a request on another's blocks."""
        with_parent = (parent.request.id, parent.index)
        with self._inside():
            child = super().fork(request, parent)
        self._write("fork", request=request_to_json(request), parent=with_parent)
        return child

    def schedule(self, *, ahead_of: ScheduledStep | None = None) -> ScheduledStep:
        """Decide the next step."""
        now_s = time.monotonic()
        self._note_reset()
        self._note_strangers()
        step = super().schedule(ahead_of=ahead_of)
        number, self._num_scheduled = self._num_scheduled, self._num_scheduled + 1
        ahead = self._numbers.get(id(ahead_of)) if ahead_of else None
        self._numbers = {id(step): number} | ({id(ahead_of): ahead} if ahead is not None else {})
        self._write("schedule", now_s, step=number, ahead_of=ahead, **step_to_json(step))
        return step

    def commit(self, step: ScheduledStep, tokens: Seq[Seq[int]]) -> list[TokenDelta]:
        """Append what a step has drawn."""
        drawn = [list(map(int, each)) for each in tokens]
        self._write("commit", step=self._numbers.pop(id(step)), tokens=drawn)
        with self._inside():
            return super().commit(step, tokens)

    def branch(self, request_id: str, picks: Seq[tuple[int, int]]) -> None:
        """Replace a request's beams."""
        self._write("branch", id=request_id, picks=[list(pick) for pick in picks])
        with self._inside():
            super().branch(request_id, picks)

    def abort(self, request_id: str) -> list[Sequence]:
        """End a request."""
        self._write("abort", id=request_id)
        with self._inside():
            return super().abort(request_id)

    def finish(
        self, sequence: Sequence, reason: FinishReason, stop_reason: int | str | None = None
    ) -> None:
        """End a sequence, as at a stop string."""
        has_ended = sequence.status is Status.FINISHED  # as by length, with the same token
        if not (self._is_inside or has_ended):
            self._write("finish", sequence=name_of(sequence), reason=reason, stop=stop_reason)
        super().finish(sequence, reason, stop_reason)

    @contextmanager
    def _inside(self) -> Generator[None, None, None]:
        """Write none of the calls that the one inside makes."""
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False

    def _note_reset(self) -> None:
        if self.pool.num_resets > self._num_resets:
            self._num_resets = self.pool.num_resets
            self._write("reset")

    def _note_strangers(self) -> None:
        """Write down who came another way, as out of a snapshot: such a run cannot be replayed."""
        strangers = {sequence.request.id for sequence in self.sequences} - self._known
        if strangers:
            self._known |= strangers
            self._write("strangers", ids=sorted(strangers))

    def _write(self, event: str, now_s: float | None = None, **more: object) -> None:
        at_s = time.monotonic() if now_s is None else now_s
        self._file.write(json.dumps({"event": event, "at_s": at_s, **more}) + "\n")


def open_scheduler(config: EngineConfig) -> Scheduler:
    """Return an engine's scheduler, which records if that is asked for."""
    if config.record is None:
        return Scheduler(config.scheduler, config.cache)
    return RecordingScheduler(config.scheduler, config.cache, Path(config.record))


def name_of(sequence: Sequence) -> tuple[str, int]:
    """Return what a recording calls a sequence."""
    return sequence.request.id, sequence.index


def step_to_json(step: ScheduledStep) -> dict[str, object]:
    """Return a step's decisions as plain lists."""
    return {
        "chunks": [[*name_of(c.sequence), c.start, c.length, c.num_samples] for c in step.chunks],
        "copies": [list(copy) for copy in step.copies],
        "preempted": [list(name_of(sequence)) for sequence in step.preempted],
    }


def request_to_json(request: Request) -> dict[str, object]:
    """Return a request as plain values; of its sampling what is not the default."""
    plain: dict[str, object] = {s.name: getattr(request, s.name) for s in fields(request)}
    default, sampling = SamplingParams(), dict[str, object]()
    for spec in fields(SamplingParams):
        value = getattr(request.sampling, spec.name)
        if value != getattr(default, spec.name):
            sampling[spec.name] = asdict(value) if spec.name in _RECORDS else value
    return plain | {"sampling": sampling, "breaker_ids": sorted(request.breaker_ids)}


def request_from_json(plain: dict[str, Any]) -> Request:
    """Return the request that `request_to_json` wrote."""
    sampling = dict(plain["sampling"])
    if sampling.get("logit_bias"):
        sampling["logit_bias"] = {int(k): value for k, value in sampling["logit_bias"].items()}
    for name, value in sampling.items():
        kind = _RECORDS.get(name)
        sampling[name] = kind(**value) if kind else value
    made: dict[str, Any] = {"sampling": SamplingParams(**sampling)}
    made["breaker_ids"] = frozenset(plain["breaker_ids"])
    for name in ("prompt", "eos_ids"):
        made[name] = tuple(plain[name])
    return Request(**(plain | made))


# Fields of SamplingParams that hold a dataclass of their own, and which.
_RECORDS: dict[str, type[Any]] = {
    spec.name: kind
    for spec in fields(SamplingParams)
    for kind in get_args(spec.type)
    if is_dataclass(kind) and isinstance(kind, type)
}
