"""Do a recorded run again, step by step, and stop wherever one likes.

`Replay` drives a fresh scheduler with what `RecordingScheduler` wrote and compares each step with
the recorded one; `at(k)` leaves it as it was when step k had been scheduled. `RecordedTiming` gives
a recorded run's times to a simulation, which then must decide alike by itself.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paged_jax.config import CacheConfig, OptionError, SchedulerConfig
from paged_jax.host.recording import VERSION, request_from_json, step_to_json
from paged_jax.host.records import step_record
from paged_jax.host.request import FinishReason, Request, ScheduledStep, Sequence
from paged_jax.host.scheduler import Scheduler
from paged_jax.host.trace import StepRecord

Event = dict[str, Any]


class ReplayError(Exception):
    """A step came out other than recorded; the message says which and how."""


@dataclass(frozen=True)
class Recording:
    """What a file holds: the scheduler's limits, and what was done to it, in order."""

    limits: SchedulerConfig
    cache: CacheConfig
    events: tuple[Event, ...]

    @classmethod
    def read(cls, path: Path) -> "Recording":
        """Read a recording; a last line that is cut off, as after a crash, is left out.

        Raises:
            OptionError: the file is not a recording of this version.
        """
        try:
            lines = path.read_text().split("\n")
            start, *events = [json.loads(line) for line in lines[:-1]]
            if start["version"] != VERSION:
                raise ValueError(f"version {start['version']}, not {VERSION}")
            limits, cache = SchedulerConfig(**start["limits"]), CacheConfig(**start["cache"])
            return cls(limits, cache, tuple(events))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OptionError(f"{path} must be a file that --record wrote: {error!r}") from error

    def of(self, kind: str) -> list[Event]:
        """Return the events of one kind."""
        return [event for event in self.events if event["event"] == kind]

    @property
    def num_steps(self) -> int:
        """Steps scheduled, empty ones included."""
        return len(self.of("schedule"))

    def requests(self) -> list[Request]:
        """Return what was added, with its times of arrival."""
        return [request_from_json(event["request"]) for event in self.of("add")]


@dataclass
class Replay:
    """A recording being done again.

    Attributes:
        scheduler: as it is by now.
        records: of the steps committed so far.
        outputs: ids by (request id, choice), but for those of beams.
    """

    recording: Recording
    records: list[StepRecord] = field(default_factory=list[StepRecord])
    outputs: defaultdict[tuple[str, int], list[int]] = field(
        default_factory=lambda: defaultdict[tuple[str, int], list[int]](list)
    )

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.recording.limits, self.recording.cache)
        self._pending: dict[int, tuple[ScheduledStep, float]] = {}
        self._last_s = 0.0

    def run(self) -> "Replay":
        """Do all of it and return self; raises ReplayError where a step differs."""
        for _ in self.steps():
            pass
        return self

    def at(self, step: int) -> "Replay":
        """Go on to where step number `step`, counted from 0, has just been scheduled; return self.

        Raises:
            OptionError: the recording is shorter.
        """
        for number, _ in enumerate(self.steps()):
            if number == step:
                return self
        raise OptionError(f"step {step} is beyond the last of {self.recording.num_steps}")

    def steps(self) -> Iterator[ScheduledStep]:
        """Yield each step when it has been scheduled, before it is committed."""
        for event in self.recording.events:
            if event["event"] == "schedule":
                yield self._schedule(event)
            else:
                getattr(self, "_" + event["event"])(event)

    def _add(self, event: Event) -> None:
        self.scheduler.add(request_from_json(event["request"]))

    def _fork(self, event: Event) -> None:
        self.scheduler.fork(request_from_json(event["request"]), self._sequence(*event["parent"]))

    def _schedule(self, event: Event) -> ScheduledStep:
        ahead = event["ahead_of"]
        ahead_of = None if ahead is None else self._pending[ahead][0]
        step = self.scheduler.schedule(ahead_of=ahead_of)
        self._pending[event["step"]] = (step, event["at_s"])
        for key, value in json.loads(json.dumps(step_to_json(step))).items():
            if value != event[key]:
                raise ReplayError(
                    f"step {event['step']} differs in its {key}: {value}, recorded {event[key]}"
                )
        return step

    def _commit(self, event: Event) -> None:
        step, start_s = self._pending.pop(event["step"])
        deltas = self.scheduler.commit(step, event["tokens"])
        for delta in deltas:
            if delta.sequence.request.sampling.beams is not None:
                continue  # what a beam draws is a candidate, not yet an answer
            self.outputs[delta.sequence.request.id, delta.sequence.index].append(delta.token)
        times_s = (max(start_s, self._last_s), event["at_s"])
        self._last_s = event["at_s"]
        self.records.append(
            step_record(self.scheduler, step, times_s=times_s, num_drawn=len(deltas))
        )

    def _branch(self, event: Event) -> None:
        self.scheduler.branch(event["id"], [(beam, token) for beam, token in event["picks"]])

    def _abort(self, event: Event) -> None:
        self.scheduler.abort(event["id"])

    def _finish(self, event: Event) -> None:
        sequence = self._sequence(*event["sequence"])
        self.scheduler.finish(sequence, FinishReason(event["reason"]), event["stop"])

    def _reset(self, event: Event) -> None:
        self.scheduler.pool.reset_prefix_cache()

    def _strangers(self, event: Event) -> None:
        raise ReplayError(f"requests {', '.join(event['ids'])} were restored: no further replay")

    def _sequence(self, request_id: str, index: int) -> Sequence:
        return next(s for s in self.scheduler.live(request_id) if s.index == index)


class RecordedTiming:
    """Steps begin and end when they did in a recorded run."""

    def __init__(self, recording: Recording):
        self._launches = [event["at_s"] for event in recording.of("schedule")]
        self._ends = {event["step"]: event["at_s"] for event in recording.of("commit")}
        self._number = -1

    def launch_s(self, now_s: float) -> float:
        """Return when the next step was scheduled."""
        self._number += 1
        return self._launches[self._number]

    def end_s(self, step: ScheduledStep, start_s: float) -> float:
        """Return when the step scheduled last was committed; at once if it never was."""
        return self._ends.get(self._number, start_s)
