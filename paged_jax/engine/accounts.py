"""What the engine reports of itself: counters, gauges, and the record of each step."""

import time
from collections import defaultdict
from collections.abc import Mapping

from paged_jax.engine.answers import Answer
from paged_jax.host.records import step_record
from paged_jax.host.request import ScheduledStep
from paged_jax.host.scheduler import Scheduler
from paged_jax.host.trace import EngineObserver, EngineStats


class Accounts:
    """Counts what is computed and tells the observers.

    Attributes:
        observers: are told of every step; the engine tells them of ended requests.
    """

    def __init__(self) -> None:
        self.observers: list[EngineObserver] = []
        self._counts: defaultdict[str, int] = defaultdict(int)

    def note_scheduled(
        self, work: ScheduledStep, start_s: float, answers: Mapping[str, Answer]
    ) -> None:
        """Note in the answers when they were scheduled first, and who was preempted."""
        for chunk in work.chunks:
            sequence = chunk.sequence
            answer = answers.get(sequence.request.id)
            if answer is not None and answer.scheduled_s is None:
                answer.scheduled_s, answer.num_cached = start_s, sequence.num_cached or 0
                self._counts["prompt_tokens"] += len(sequence.request.prompt)
        for sequence in work.preempted:
            answer = answers.get(sequence.request.id)
            if answer is not None:
                answer.num_preemptions += 1

    def note_read(
        self, work: ScheduledStep, start_s: float, num_drawn: int, scheduler: Scheduler
    ) -> None:
        """Count a step that has been read, and tell the observers of it."""
        self._counts["computed_prompt_tokens"] += work.num_prompt_tokens
        self._counts["generation_tokens"] += num_drawn
        if not self.observers:
            return
        times_s = (start_s, time.monotonic())
        record = step_record(scheduler, work, times_s=times_s, num_drawn=num_drawn)
        for observer in self.observers:
            observer.on_step(record)

    def stats(self, scheduler: Scheduler, num_compilations: int) -> EngineStats:
        """Return gauges and counters."""
        return EngineStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            usage=scheduler.usage(),
            prefix_queries=scheduler.prefix.queries,
            prefix_hits=scheduler.prefix.hits,
            num_preemptions=scheduler.num_preemptions,
            num_copies=scheduler.num_copies,
            num_compilations=num_compilations,
            **self._counts,
        )
