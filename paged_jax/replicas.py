"""Replicas: several engines on devices of their own, behind one queue, that look like one engine.

Each replica has a thread that runs its steps, so that a long step of one holds up no other. A
replica whose step fails is dead: its requests end with an error that names it, it gets no more, and
the others go on. Like an engine it is not thread-safe: one thread adds, steps and aborts.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import fields
from functools import partial, reduce
from typing import TypeVar

from paged_jax.build import build_engines
from paged_jax.config import AttentionMods, EngineConfig, OptionError
from paged_jax.device.draw_extras import LogitsProcessor
from paged_jax.engine.engine import Engine
from paged_jax.engine.token_rules import RuleBook
from paged_jax.engine_args import EngineArgs
from paged_jax.host.blocks import hash_blocks
from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.host.scheduler import Scheduler
from paged_jax.host.trace import EngineObserver, EngineStats, PoolUsage
from paged_jax.models.params import ModelParams
from paged_jax.outputs import RequestDelta
from paged_jax.phases import PhaseClock
from paged_jax.replica import InTurn, Replica
from paged_jax.text.grammar import Grammar
from paged_jax.text.tokenizer import Tokenizer

logger = logging.getLogger("paged_jax")

LOAD_TOKENS = 32  # what a request being answered weighs in placement, in tokens to compute
POLL_S = 0.005  # how long a step waits for the first replica, so that new requests are taken

T = TypeVar("T")


def build(
    args: EngineArgs,
    *,
    clock: PhaseClock | None = None,
    logits_processor: LogitsProcessor | None = None,
    mods: AttentionMods | None = None,
) -> "Engine | Replicas":
    """Return a ready engine, or several as one; see `build_engines`."""
    engines = build_engines(args, clock=clock, logits_processor=logits_processor, mods=mods)
    return engines[0] if len(engines) == 1 else Replicas(engines)


def of_schedulers(engine: "Engine | Replicas", read: Callable[[Scheduler], T]) -> list[T]:
    """Return what `read` tells of each replica's scheduler, between its steps."""
    if isinstance(engine, Replicas):
        return engine.of_schedulers(read)
    return [read(engine.scheduler)]


class Replicas:
    """Has what AsyncEngine and LLM use of an Engine.

    A request goes where most of its prompt is cached; each request that is being answered there
    weighs against that like LOAD_TOKENS tokens that are not.
    """

    def __init__(self, engines: Seq[Engine]):
        self._replicas = [
            Replica(
                name=f"replica {index + 1} of {len(engines)}",
                engine=engine,
                worker=ThreadPoolExecutor(1, f"replica {index + 1}"),
                stats=engine.stats(),
            )
            for index, engine in enumerate(engines)
        ]
        self._owner: dict[str, Replica] = {}
        self._ready: list[RequestDelta] = []
        self._lock = threading.Lock()

    @property
    def config(self) -> EngineConfig:
        """The first replica's configuration; the others differ in their devices alone."""
        return self._replicas[0].engine.config

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._replicas[0].engine.tokenizer

    @property
    def default_sampling(self) -> Mapping[str, object]:
        """Sampling settings the model's authors recommend."""
        return self._replicas[0].engine.default_sampling

    @property
    def rules(self) -> RuleBook:
        """The first replica's; to compile grammars with."""
        return self._replicas[0].engine.rules

    @property
    def engines(self) -> list[Engine]:
        """The replicas' engines; their threads use them while requests are live."""
        return [replica.engine for replica in self._replicas]

    @property
    def has_work(self) -> bool:
        """Whether a request has not ended."""
        return bool(self._owner)

    @property
    def num_live(self) -> int:
        """Requests that have not ended."""
        return len(self._owner)

    def check(self, prompt: Seq[int], params: SamplingParams) -> None:
        """Raise InvalidRequest, naming the field and the limit, if this can never be served."""
        self._replicas[0].engine.check(prompt, params)

    def add(
        self,
        prompt: Seq[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        """Queue a request at one of the replicas.

        Raises:
            InvalidRequest: it can never be served, or the id is in use.
        """
        engine = self._replicas[0].engine
        engine.check_size(prompt, params)
        grammar = grammar or self.rules.compile(params)
        if request_id in self._owner:
            raise InvalidRequest(f"request id {request_id!r} is in use", "request_id")
        replica = self._owner[request_id] = self._place(prompt, cache_salt)
        replica.live.add(request_id)
        replica.added.append(
            partial(
                replica.engine.add,
                prompt,
                params,
                request_id=request_id,
                priority=priority,
                cache_salt=cache_salt,
                grammar=grammar,
            )
        )

    def _place(self, prompt: Seq[int], cache_salt: str | None) -> Replica:
        """Choose among the replicas that are alive."""
        size = self.config.cache.block_size
        hashes = hash_blocks(prompt[: len(prompt) - 1], size, salt=cache_salt)

        def merit(replica: Replica) -> tuple[int, int]:
            num_cached = size * replica.engine.scheduler.pool.num_known(hashes)
            return num_cached - LOAD_TOKENS * len(replica.live), num_cached

        return max(self._alive(), key=merit)

    def _alive(self) -> list[Replica]:
        alive = [replica for replica in self._replicas if replica.error is None]
        if not alive:
            raise RuntimeError("; ".join(replica.error or "" for replica in self._replicas))
        return alive

    def abort(self, request_id: str) -> RequestDelta | None:
        """End a request in whatever state; return what it had still to be told, in one delta.

        None if it has ended already.
        """
        replica = self._owner.get(request_id)
        if replica is None:
            return None
        last = replica.abort(request_id)
        if replica.stepping is not None:  # it came first, and is done
            self._ready += self._collect(replica)
        if last is None:
            return None
        self._end(request_id)
        before = [delta for delta in self._ready if delta.request_id == request_id]
        self._ready = [delta for delta in self._ready if delta.request_id != request_id]
        return reduce(RequestDelta.merged, [*before, last])

    def _end(self, request_id: str) -> None:
        self._owner.pop(request_id).live.discard(request_id)

    def step(self) -> list[RequestDelta]:
        """Let every replica with requests step, and deliver what those that are done have drawn.

        Waits for the first of them, but for POLL_S at most.
        """
        ready, self._ready = self._ready, []
        busy = {replica.start(): replica for replica in self._alive() if replica.live}
        done, _ = wait(busy, 0 if ready else POLL_S, return_when=FIRST_COMPLETED)
        for future in done:
            ready += self._collect(busy[future])
        return ready

    def _collect(self, replica: Replica) -> list[RequestDelta]:
        """Take what a replica's step delivers, or bury the replica."""
        stepping, replica.stepping, replica.begun_s = replica.stepping, None, None
        assert stepping is not None, "no step is under way"
        try:
            deltas, replica.stats = stepping.result()
        except Exception as error:
            deltas = self._bury(replica, error)
        for delta in deltas:
            if delta.finished and delta.request_id in self._owner:
                self._end(delta.request_id)
        return deltas

    def _bury(self, replica: Replica, error: Exception) -> list[RequestDelta]:
        """Note a death; raise it if it was the last replica alive."""
        replica.error = f"{replica.name} failed: {type(error).__name__}"
        logger.error("%s; it gets no more requests", replica.error, exc_info=error)
        if all(each.error is not None for each in self._replicas):
            raise error
        ids = sorted(replica.live)
        return [RequestDelta(name, (), finished=True, error=replica.error) for name in ids]

    def add_observer(self, observer: EngineObserver) -> None:
        """Tell `observer` of every step and every ended request, one at a time."""
        for replica in self._replicas:
            replica.engine.add_observer(InTurn(observer, self._lock))

    def stats(self) -> EngineStats:
        """Return the replicas' gauges and counters, added up."""
        known = [replica.stats for replica in self._replicas]
        sums = _sums(known, EngineStats, without=("usage", "num_dead_replicas"))
        usage = PoolUsage(**_sums([stats.usage for stats in known], PoolUsage))
        num_dead = sum(replica.error is not None for replica in self._replicas)
        return EngineStats(usage=usage, num_dead_replicas=num_dead, **sums)

    @property
    def busy_s(self) -> float:
        """Seconds that the longest of the steps under way has taken so far."""
        begun = [replica.begun_s for replica in self._replicas if replica.begun_s is not None]
        return time.monotonic() - min(begun) if begun else 0.0

    def of_schedulers(self, read: Callable[[Scheduler], T]) -> list[T]:
        """Return what `read` tells of each replica's scheduler, between its steps."""
        told = [replica.worker.submit(read, replica.engine.scheduler) for replica in self._replicas]
        return [future.result() for future in told]

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes unless a request is live; return whether it was done."""
        if self._owner:
            return False
        return all(engine.reset_prefix_cache() for engine in self.engines)

    def update_params(self, params: ModelParams) -> int:
        """Refuse: every replica has parameters of its own."""
        raise OptionError("update_params needs --data-parallel-size 1")

    def close(self) -> None:
        """Free the devices' memory. The replicas are unusable afterwards."""
        for replica in self._replicas:
            replica.worker.shutdown()
            replica.engine.close()


def _sums(items: Seq[object], kind: type, *, without: Seq[str] = ()) -> dict[str, int]:
    """Add up the fields of equal records."""
    names = [spec.name for spec in fields(kind) if spec.name not in without]
    return {name: sum(getattr(item, name) for item in items) for name in names}
