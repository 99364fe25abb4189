"""One replica of several: an engine, and the thread that alone touches it."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from paged_jax.engine.engine import Engine
from paged_jax.host.trace import EngineObserver, EngineStats, RequestRecord, StepRecord
from paged_jax.outputs import RequestDelta

T = TypeVar("T")
Delivery = tuple[list[RequestDelta], EngineStats]


@dataclass(eq=False)
class Replica:
    """One engine and the thread that alone touches it.

    Attributes:
        live: ids of its requests that have not ended.
        added: calls to make before the next step.
        stepping: the step under way.
        begun_s: when that was begun, on the monotonic clock.
        error: what it died of.
    """

    name: str
    engine: Engine
    worker: ThreadPoolExecutor
    stats: EngineStats
    live: set[str] = field(default_factory=set)
    added: list[Callable[[], None]] = field(default_factory=list)
    stepping: Future[Delivery] | None = None
    begun_s: float | None = None
    error: str | None = None

    def start(self) -> Future[Delivery]:
        """Begin a step unless one is under way."""
        if self.stepping is None:
            self.begun_s = time.monotonic()
            self.stepping = self._submit(self.engine.step)
        return self.stepping

    def abort(self, request_id: str) -> RequestDelta | None:
        """End a request once the step under way is done."""
        delta, self.stats = self._submit(partial(self.engine.abort, request_id)).result()
        return delta

    def _submit(self, work: Callable[[], T]) -> Future[tuple[T, EngineStats]]:
        """Let the thread make the calls that were added, then work."""
        added, self.added = self.added, []

        def run() -> tuple[T, EngineStats]:
            for call in added:
                call()
            return work(), self.engine.stats()

        return self.worker.submit(run)


class InTurn:
    """An EngineObserver that several threads tell one after the other."""

    def __init__(self, observer: EngineObserver, lock: threading.Lock):
        self._observer, self._lock = observer, lock

    def on_step(self, record: StepRecord) -> None:
        """Tell of a step."""
        with self._lock:
            self._observer.on_step(record)

    def on_finish(self, record: RequestRecord) -> None:
        """Tell of an ended request."""
        with self._lock:
            self._observer.on_finish(record)
