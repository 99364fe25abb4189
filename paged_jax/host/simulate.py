"""Run the scheduler against arrivals without a device: the same classes, on a clock of its own.

The loop is `Engine.step`'s: a step is scheduled while the one before it runs, and committed when
that one has ended. How long steps take is asked of a `Timing`: a cost model, or the times of a
recorded run. What comes out are the records an engine gives its observers.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from paged_jax.host.buckets import token_buckets
from paged_jax.host.records import step_record
from paged_jax.host.request import Chunk, Request, ScheduledStep, Status, TokenDelta
from paged_jax.host.scheduler import Scheduler
from paged_jax.host.step_cost import StepCost, size_of
from paged_jax.host.trace import RequestRecord, StepRecord

Draw = Callable[[Request, int, int], int]  # of a request, choice and position: a token


def no_token(request: Request, index: int, position: int) -> int:
    """Draw id 0 always: lengths are what is simulated."""
    return 0


class Timing(Protocol):
    """When the steps begin and end."""

    def launch_s(self, now_s: float) -> float:
        """Return when the next step is scheduled, given when the host is free for it."""
        ...

    def end_s(self, step: ScheduledStep, start_s: float) -> float:
        """Return when a step's draws are there, given when the device can begin it."""
        ...


class ModelledTiming:
    """Steps take what a cost model says; the host takes no time of its own."""

    def __init__(self, cost: StepCost, scheduler: Scheduler):
        self._cost, limits = cost, scheduler.config
        self._buckets = token_buckets(limits.max_tokens_per_step + limits.max_seqs)

    def num_padding(self, step: ScheduledStep) -> int:
        """Return how many rows are computed beside the step's own."""
        return 0

    def launch_s(self, now_s: float) -> float:
        """At once."""
        return now_s

    def end_s(self, step: ScheduledStep, start_s: float) -> float:
        """Return the start plus the step's cost."""
        size = size_of(step, self._buckets, num_padding=self.num_padding(step))
        return start_s + self._cost.seconds(size)


@dataclass
class Progress:
    """What is known of one request while it is simulated; times as in RequestRecord."""

    request: Request
    scheduled_s: float | None = None
    num_cached: int = 0
    num_preemptions: int = 0
    token_times_s: list[float] = field(default_factory=list[float])
    lengths: Counter[int] = field(default_factory=Counter[int])
    gaps_s: list[float] = field(default_factory=list[float])
    reasons: list[str] = field(default_factory=list[str])
    last_s: dict[int, float] = field(default_factory=dict[int, float])

    def note(self, delta: TokenDelta, now_s: float) -> bool:
        """Note a token; return whether it was the request's last."""
        index = delta.sequence.index
        if index in self.last_s:
            self.gaps_s.append(now_s - self.last_s[index])
        self.last_s[index] = now_s
        self.lengths[index] += 1
        self.token_times_s.append(now_s)
        if delta.finish_reason is not None:
            self.reasons.append(delta.finish_reason.value)
        return len(self.reasons) == self.request.n

    def record(self) -> RequestRecord:
        """Return the record of the ended request."""
        request, times_s = self.request, self.token_times_s
        return RequestRecord(
            id=request.id,
            n=request.n,
            num_prompt_tokens=len(request.prompt),
            num_cached_tokens=self.num_cached,
            num_generated=len(times_s),
            max_generated=max(self.lengths.values()),
            max_tokens=request.max_tokens,
            num_preemptions=self.num_preemptions,
            finish_reasons=tuple(self.reasons),
            arrival_s=request.arrival_s,
            scheduled_s=self.scheduled_s,
            first_token_s=times_s[0],
            last_token_s=times_s[-1],
            finish_s=times_s[-1],
            token_gaps_s=tuple(self.gaps_s),
        )


class SimulatedStep(NamedTuple):
    """A step on its way, and when the device computes it."""

    work: ScheduledStep
    start_s: float
    end_s: float


class Simulation:
    """One run of one scheduler, to the end of its requests.

    Attributes:
        scheduler: the real one.
        steps: a record of each step.
        requests: a record of each request, in the order of their ends.
        shares: tokens computed for each client (`cache_salt`) while all clients had work.
        now_s: the clock.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        requests: Iterable[Request],
        timing: Timing,
        *,
        draw: Draw = no_token,
        is_overlapped: bool = True,
    ):
        self.scheduler = scheduler
        self.steps: list[StepRecord] = []
        self.requests: list[RequestRecord] = []
        self.now_s = 0.0
        self._arrivals = deque(sorted(requests, key=lambda request: request.arrival_s))
        self._timing, self._draw, self._is_overlapped = timing, draw, is_overlapped
        self._live: dict[str, Progress] = {}
        self._num_live = Counter(dict.fromkeys((r.cache_salt for r in self._arrivals), 0))
        self.shares = Counter(self._num_live)
        self._in_flight: SimulatedStep | None = None
        self._free_s = 0.0  # when the device has done all it was given

    @property
    def has_work(self) -> bool:
        """Whether requests are unfinished or still to come."""
        return bool(self._arrivals) or self.scheduler.has_work

    def run(self) -> "Simulation":
        """Go on to the end and return self."""
        while self.has_work:
            self.step()
        return self

    def step(self) -> ScheduledStep:
        """Do what `Engine.step` does, and what comes before it; return what was scheduled."""
        if not self.scheduler.has_work:
            self.now_s = max(self.now_s, self._arrivals[0].arrival_s)
        self.now_s = self._timing.launch_s(self.now_s)
        self._take_arrivals()
        before, self._in_flight = self._in_flight, None
        work = self.scheduler.schedule(ahead_of=before.work if before else None)
        launched = self._launch(work) if work.chunks else None
        if before:
            self._read(before)
        if launched and (work.needs_reading or not self._is_overlapped):
            self._read(launched)
        elif self.scheduler.has_work:
            self._in_flight = launched
        return work

    def _take_arrivals(self) -> None:
        while self._arrivals and self._arrivals[0].arrival_s <= self.now_s:
            request = self._arrivals.popleft()
            self.scheduler.add(request)
            self._live[request.id] = Progress(request)
            self._num_live[request.cache_salt] += 1

    def _launch(self, work: ScheduledStep) -> SimulatedStep:
        start_s = max(self._free_s, self.now_s)
        self._free_s = self._timing.end_s(work, start_s)
        for sequence, _, _, _ in work.chunks:
            progress = self._live[sequence.request.id]
            if progress.scheduled_s is None:
                progress.scheduled_s, progress.num_cached = self.now_s, sequence.num_cached or 0
        for sequence in work.preempted:
            self._live[sequence.request.id].num_preemptions += 1
        return SimulatedStep(work, start_s, self._free_s)

    def _read(self, launched: SimulatedStep) -> None:
        """Let a step end and give its tokens to the requests."""
        work, start_s, self.now_s = launched
        if all(self._num_live.values()):
            for chunk in work.chunks:
                self.shares[chunk.sequence.request.cache_salt] += chunk.length
        deltas = self.scheduler.commit(work, [self._drawn(chunk) for chunk in work.chunks])
        for delta in deltas:
            self._note(delta)
        times_s = (start_s, self.now_s)
        record = step_record(self.scheduler, work, times_s=times_s, num_drawn=len(deltas))
        self.steps.append(record)

    def _drawn(self, chunk: Chunk) -> list[int]:
        sequence, _, _, num_samples = chunk
        if sequence.status is not Status.RUNNING:
            return [0] * num_samples  # ignored
        first, position = sequence.index, len(sequence.output)
        indices = range(first, first + num_samples)
        return [self._draw(sequence.request, index, position) for index in indices]

    def _note(self, delta: TokenDelta) -> None:
        request = delta.sequence.request
        if self._live[request.id].note(delta, self.now_s):
            self.requests.append(self._live.pop(request.id).record())
            self._num_live[request.cache_salt] -= 1
