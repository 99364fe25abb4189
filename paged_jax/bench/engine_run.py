"""paged_jax as a thing to measure: an engine in this process, stepped so that the time of every
token is seen.
"""

import os
import time
from collections.abc import Sequence

from paged_jax.bench.datasets import BenchRequest, exactly
from paged_jax.bench.machine import peak_rss_bytes
from paged_jax.bench.metrics import Figures, Outcome
from paged_jax.build import build_engine
from paged_jax.engine.engine import Engine
from paged_jax.engine_args import EngineArgs
from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.trace import EngineStats, RequestRecord, StepRecord


class KvUse:
    """An EngineObserver that adds up how well the KV pool is used."""

    def __init__(self, block_size: int):
        self._block_size = block_size
        self._filled: list[float] = []
        self._used: list[float] = []

    def on_step(self, record: StepRecord) -> None:
        """Note a step's use; steps that leave no sequence behind do not count."""
        usage = record.usage
        if usage.num_used:
            self._filled.append(usage.num_tokens / (usage.num_used * self._block_size))
            self._used.append(usage.num_used / usage.num_blocks)

    def on_finish(self, record: RequestRecord) -> None:
        """Requests are not looked at."""

    def figures(self) -> Figures:
        """Return shares: of allocated slots that hold a token, and of blocks that are allocated."""
        return {
            "kv_slot_use_mean": sum(self._filled) / len(self._filled) if self._filled else None,
            "kv_slot_use_max": max(self._filled, default=None),
            "kv_cache_usage_mean": sum(self._used) / len(self._used) if self._used else None,
            "kv_cache_usage_max": max(self._used, default=None),
        }

    def clear(self) -> None:
        """Forget what was noted."""
        self._filled, self._used = [], []


class OwnEngine:
    """Runs lists of requests, all submitted at once, greedy and to their exact lengths.

    Attributes:
        engine: the engine; warm.
    """

    def __init__(self, args: EngineArgs):
        self.engine: Engine = build_engine(args)
        self._use = KvUse(self.engine.config.cache.block_size)
        self.engine.add_observer(self._use)
        self._before = EngineStats()

    def run(self, requests: Sequence[BenchRequest]) -> list[Outcome]:
        """Generate; one outcome per request, in order. A request that is refused is an error."""
        self._use.clear()
        self._before = self.engine.stats()
        start = time.perf_counter()
        errors = {index: self._add(index, request) for index, request in enumerate(requests)}
        times: list[list[float]] = [[] for _ in requests]
        ids: list[list[int]] = [[] for _ in requests]
        while self.engine.has_work:
            deltas = self.engine.step()
            now = time.perf_counter()
            for delta in deltas:
                index = int(delta.request_id)
                errors[index] = errors[index] or delta.error
                tokens = [token for choice in delta.choices for token in choice.token_ids]
                ids[index] += tokens
                times[index] += [now] * len(tokens)
        return [
            Outcome(len(request.prompt), len(ids[i]), start, times[i], errors[i], ids[i])
            for i, request in enumerate(requests)
        ]

    def _add(self, index: int, request: BenchRequest) -> str | None:
        try:
            self.engine.add(request.prompt, exactly(request.max_tokens), request_id=str(index))
        except InvalidRequest as error:
            return str(error)
        return None

    def figures(self) -> Figures:
        """Return memory, KV use, prefix hits and compilations of the last run."""
        now, before = self.engine.stats(), self._before
        queries = now.prefix_queries - before.prefix_queries
        hits = now.prefix_hits - before.prefix_hits
        return {
            "peak_rss_bytes": peak_rss_bytes(os.getpid()),
            **self._use.figures(),
            "prefix_hit_rate": hits / queries if queries else None,
            "num_compilations": now.num_compilations - before.num_compilations,
        }

    def reset(self) -> None:
        """Forget cached prefixes."""
        self.engine.scheduler.pool.reset_prefix_cache()

    def close(self) -> None:
        """Free the device's memory."""
        self.engine.close()
