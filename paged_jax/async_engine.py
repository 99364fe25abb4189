"""AsyncEngine: one thread that steps the engine, asyncio streams that carry its deltas.

Requests and aborts go through an inbox that the stepping thread empties before each step. A
consumer that is slow, or has stopped reading, gets one merged delta later; it never holds up the
engine.
"""

import asyncio
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from collections.abc import Sequence as Seq
from functools import partial
from typing import TypeVar

from paged_jax.cluster.leading_engine import LeadingEngine
from paged_jax.config import EngineConfig, ModelError, OptionError
from paged_jax.engine.engine import Engine
from paged_jax.engine_args import EngineArgs
from paged_jax.host.block_map import BlockMap, block_map, joined
from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.host.trace import EngineObserver, EngineStats
from paged_jax.models.params import ModelParams
from paged_jax.outputs import RequestDelta
from paged_jax.phases import PhaseClock
from paged_jax.replicas import Replicas, build, of_schedulers
from paged_jax.request_stream import RequestStream
from paged_jax.text.grammar import Grammar
from paged_jax.text.tokenizer import Tokenizer

logger = logging.getLogger("paged_jax")

T = TypeVar("T")


def _set_all(events: list[asyncio.Event]) -> None:
    for event in events:
        event.set()


class AsyncEngine:
    """An engine that many coroutines can ask at once.

    Attributes:
        engine: the synchronous engine; only the stepping thread touches it once started.
        is_draining: no new requests are taken.
        error: why nothing works any more; None while it does.
    """

    def __init__(self, engine: Engine | Replicas):
        self.engine = engine
        self.is_draining = False
        self.error: str | None = None
        self._streams: dict[str, RequestStream] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._stats = engine.stats()
        self._began_s: float | None = None  # when the present step was begun

    @classmethod
    def from_args(cls, args: EngineArgs, *, clock: PhaseClock | None = None) -> "AsyncEngine":
        """Load, compile and wrap an engine; blocks until it is ready."""
        engine = cls(build(args, clock=clock))
        if isinstance(engine.engine, LeadingEngine):
            engine.engine.leader.failure.on_failure = engine.fail
        return engine

    @property
    def config(self) -> EngineConfig:
        """The engine's configuration."""
        return self.engine.config

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.engine.tokenizer

    @property
    def default_sampling(self) -> Mapping[str, object]:
        """Sampling settings the model's authors recommend."""
        return self.engine.default_sampling

    @property
    def is_healthy(self) -> bool:
        """Whether the stepping thread is alive and no step has failed."""
        return self.error is None and self._thread.is_alive()

    @property
    def busy_s(self) -> float:
        """Seconds since the stepping thread, or the slowest replica, last made progress.

        0 while there is nothing to do.
        """
        began_s = self._began_s
        own_s = 0.0 if began_s is None else time.monotonic() - began_s
        return max(own_s, self.engine.busy_s) if isinstance(self.engine, Replicas) else own_s

    def start(self) -> None:
        """Start the stepping thread."""
        self._thread.start()

    def stats(self) -> EngineStats:
        """Return the gauges and counters as of the last step."""
        return self._stats

    def add_observer(self, observer: EngineObserver) -> None:
        """Tell `observer`, in the stepping thread, of every step and every ended request."""
        self.engine.add_observer(observer)

    def check(self, prompt: Seq[int], params: SamplingParams) -> None:
        """Raise InvalidRequest if this can never be served."""
        self.engine.check(prompt, params)

    async def generate(
        self,
        prompt: Seq[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncIterator[RequestDelta]:
        """Yield the request's deltas until one is finished; closing the iterator aborts the
        request.

        Raises:
            InvalidRequest: the request can never be served, or the id is in use.
        """
        grammar = await self._checked(prompt, params)
        if request_id in self._streams:
            raise InvalidRequest(f"request id {request_id!r} is in use", "request_id")
        stream = self._streams[request_id] = RequestStream(request_id)
        add = partial(
            self.engine.add,
            prompt,
            params,
            request_id=request_id,
            priority=priority,
            cache_salt=cache_salt,
            grammar=grammar,
        )
        self._post(lambda: self._add(request_id, add))
        is_finished = False
        try:
            while not is_finished:
                delta = await stream.get()
                is_finished = delta.finished
                yield delta
        finally:
            self._streams.pop(request_id, None)
            if not is_finished:
                self._post(lambda: self._abort(request_id))

    def abort(self, request_id: str) -> None:
        """End a request; its consumer gets a last delta whose choices are finished as "abort"."""
        self._post(lambda: self._abort(request_id))

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes unless a request holds blocks; return whether it was done."""
        return await self._between_steps(self.engine.reset_prefix_cache)

    async def update_params(self, params: ModelParams) -> int:
        """Replace the parameters between two steps; do and raise as `Engine.update_params`."""
        return await self._between_steps(partial(self.engine.update_params, params))

    async def block_map(self) -> BlockMap:
        """Return the state of the KV pool between two steps; of replicas' pools one by one."""
        return await self._between_steps(lambda: joined(of_schedulers(self.engine, block_map)))

    async def _between_steps(self, work: Callable[[], T]) -> T:
        """Return what `work` returns in the stepping thread."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def tell(give: Callable[[], None]) -> None:
            if not done.done():  # else the caller has gone
                give()

        def run() -> None:
            try:
                give = partial(done.set_result, work())
            except (OptionError, ModelError, RuntimeError) as error:  # the caller's
                give = partial(done.set_exception, error)
            if not loop.is_closed():
                loop.call_soon_threadsafe(tell, give)

        self._post(run)
        return await done

    def _post(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()

    async def _checked(self, prompt: Seq[int], params: SamplingParams) -> Grammar | None:
        """Check a request; compile its grammar, if it has one, in a thread."""
        if params.structured_outputs is None:
            self.check(prompt, params)
            return None
        await asyncio.to_thread(self.check, prompt, params)
        return await asyncio.to_thread(self.engine.rules.compile, params)

    def _add(self, request_id: str, add: Callable[[], None]) -> None:
        if request_id not in self._streams:
            return  # the consumer left before the request was taken
        if self.error is not None:
            self._fail(request_id, self.error)
            return
        try:
            add()
        except InvalidRequest as error:
            self._fail(request_id, str(error))

    def _abort(self, request_id: str) -> None:
        delta = self.engine.abort(request_id)
        if delta is not None:
            self._dispatch([delta])

    def _fail(self, request_id: str, error: str) -> None:
        self._dispatch([RequestDelta(request_id, (), finished=True, error=error)])

    def _dispatch(self, deltas: list[RequestDelta]) -> None:
        """Give each delta to its stream, and wake each event loop once."""
        woken: defaultdict[asyncio.AbstractEventLoop, list[asyncio.Event]] = defaultdict(list)
        for delta in deltas:
            stream = self._streams.get(delta.request_id)
            if stream is not None and stream.put(delta):
                woken[stream.loop].append(stream.ready)
        for loop, events in woken.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_set_all, events)

    # ---- the stepping thread ----------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                self._empty_inbox()  # also before leaving: aborts posted last are carried out
                if self._is_stopping:
                    return
                if self._is_busy:
                    self._dispatch(self.engine.step())
                self._stats = self.engine.stats()
            except BaseException as error:  # whatever it is, those who wait must be told
                logger.exception("The engine failed")
                self.fail(type(error).__name__)

    def fail(self, cause: str) -> None:
        """Be unhealthy from now on, and tell everybody who waits, from any thread."""
        self.error = self.error or f"the engine failed: {cause}"
        for request_id in list(self._streams):
            self._fail(request_id, self.error)

    def _empty_inbox(self) -> None:
        """Carry out what was posted; wait for it when there is nothing else to do."""
        with self._wake:
            while not (self._inbox or self._is_stopping or self._is_busy):
                self._began_s = None
                self._wake.wait()
            commands, self._inbox = self._inbox, deque()
        self._began_s = time.monotonic()
        for command in commands:
            command()

    @property
    def _is_busy(self) -> bool:
        return self.error is None and self.engine.has_work

    # ---- the end ----------------------------------------------------------------------------

    async def drain(self, timeout_s: float) -> None:
        """Take no new requests, let the running ones end for `timeout_s`, then abort the rest."""
        self.is_draining = True
        deadline = time.monotonic() + timeout_s
        while self._streams and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        for request_id in list(self._streams):
            self.abort(request_id)
        deadline = time.monotonic() + 2.0
        while self._streams and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    def stop(self) -> None:
        """Stop the stepping thread; the engine is the caller's again."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        """Stop the stepping thread and free the device's memory."""
        self.stop()
        self.engine.close()
