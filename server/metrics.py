"""Prometheus metrics: `paged_jax:` and vLLM's names; the same under `vllm:` for its dashboards.

Histograms are fed by the engine's stepping thread; gauges and counters are read from
`engine.stats()` when scraped. No label holds a client's text.
"""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from paged_jax.host.request import FinishReason
from paged_jax.host.trace import EngineStats, RequestRecord, StepRecord

if TYPE_CHECKING:
    from paged_jax.async_engine import AsyncEngine

# fmt: off
_FIRST_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
            20, 40, 80, 160, 640, 2560)
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20,
            40, 80)
_STAGE_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920,
            7680)
# fmt: on
_LABELS = ("model_name", "engine")
REFUSALS = ("queue_full", "not_ready")
_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS"})
_OWN_NAME = re.compile(rb"^(# (?:HELP|TYPE) )?paged_jax:", re.MULTILINE)


def _buckets(max_model_len: int) -> dict[str, tuple[float, ...]]:
    """Return the buckets of every histogram; lengths are in tokens, 1-2-5 up to the limit."""
    series = (digit * 10**power for power in range(19) for digit in (1, 2, 5))
    lengths = tuple(value for value in series if value <= max_model_len)
    return {
        "time_to_first_token_seconds": _FIRST_S,
        "inter_token_latency_seconds": _TOKEN_S,
        "request_time_per_output_token_seconds": _TOKEN_S,
        "e2e_request_latency_seconds": _STAGE_S,
        "request_queue_time_seconds": _STAGE_S,
        "request_inference_time_seconds": _STAGE_S,
        "request_prefill_time_seconds": _STAGE_S,
        "request_decode_time_seconds": _STAGE_S,
        "request_prompt_tokens": lengths,
        "request_generation_tokens": lengths,
        "request_max_num_generation_tokens": lengths,
        "request_params_max_tokens": lengths,
        "request_prefill_kv_computed_tokens": lengths,
        "request_params_n": (1, 2, 5, 10, 20),
        "request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
        "iteration_tokens_total": (1, *(2**power for power in range(3, 15))),
    }


class Metrics:
    """The registry of one server; an EngineObserver."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self, engine: "AsyncEngine", *, model: str, has_alias: bool = False):
        self._registry, self._common = CollectorRegistry(), CollectorRegistry()
        self._labels, self._has_alias = (model, "0"), has_alias
        buckets = _buckets(engine.config.scheduler.max_model_len)
        self._histograms = {name: self._histogram(name, steps) for name, steps in buckets.items()}
        self._success = self._counter("request_success", "finished_reason", FinishReason)
        self._refusals = self._counter("admission_rejections", "reason", REFUSALS)
        self._registry.register(StatsCollector(engine, self._labels))
        ProcessCollector(registry=self._common)
        self._answers = Counter(
            "http_requests",
            "Requests answered",
            ("handler", "method", "status"),
            registry=self._common,
        )
        self._answer_s = Histogram(
            "http_request_duration_seconds",
            "Time to the end of the answer",
            ("handler", "method"),
            buckets=_STAGE_S,
            registry=self._common,
        )

    def _histogram(self, name: str, steps: tuple[float, ...]) -> Histogram:
        name, registry = f"paged_jax:{name}", self._registry
        family = Histogram(name, _help(name), _LABELS, buckets=steps, registry=registry)
        return family.labels(*self._labels)

    def _counter(self, name: str, label: str, values: Iterable[str]) -> Counter:
        """Return a counter by the values of one label, which all begin at 0."""
        name, registry = f"paged_jax:{name}", self._registry
        family = Counter(name, _help(name), (*_LABELS, label), registry=registry)
        for value in values:
            family.labels(*self._labels, str(value))
        return family

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        own = generate_latest(self._registry)
        alias = _OWN_NAME.sub(rb"\1vllm:", own) if self._has_alias else b""
        return own + alias + generate_latest(self._common)

    def on_step(self, record: StepRecord) -> None:
        """Count a step's tokens."""
        num_tokens = record.num_prompt_tokens + record.num_generated
        self._histograms["iteration_tokens_total"].observe(num_tokens)

    def on_finish(self, record: RequestRecord) -> None:
        """Count a request and the times it took."""
        for name, value in (sizes(record) | durations(record)).items():
            self._histograms[name].observe(value)
        for gap in record.token_gaps_s:
            self._histograms["inter_token_latency_seconds"].observe(gap)
        for reason in record.finish_reasons:
            self._success.labels(*self._labels, reason).inc()

    def on_refusal(self, reason: str) -> None:
        """Count a generation request that was turned away; `reason` is one of REFUSALS."""
        self._refusals.labels(*self._labels, reason).inc()

    def on_answer(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Count an answered HTTP request; `handler` is a route's path, not the client's."""
        method = method if method in _METHODS else "other"
        self._answers.labels(handler, method, f"{status // 100}xx").inc()
        self._answer_s.labels(handler, method).observe(seconds)


def sizes(record: RequestRecord) -> dict[str, int]:
    """Return what is counted of a request, by histogram."""
    return {
        "request_prompt_tokens": record.num_prompt_tokens,
        "request_generation_tokens": record.num_generated,
        "request_max_num_generation_tokens": record.max_generated,
        "request_params_max_tokens": record.max_tokens,
        "request_prefill_kv_computed_tokens": record.num_prompt_tokens - record.num_cached_tokens,
        "request_params_n": record.n,
        "request_num_preemptions": record.num_preemptions,
    }


def durations(record: RequestRecord) -> dict[str, float]:
    """Return the seconds of each stage, by histogram; stages that were not reached are absent."""
    arrival, scheduled = record.arrival_s, record.scheduled_s
    first, last = record.first_token_s, record.last_token_s
    spans = {
        "time_to_first_token_seconds": (arrival, first),
        "e2e_request_latency_seconds": (arrival, record.finish_s),
        "request_queue_time_seconds": (arrival, scheduled),
        "request_prefill_time_seconds": (scheduled, first),
        "request_inference_time_seconds": (scheduled, last),
        "request_decode_time_seconds": (first, last),
    }
    found = {
        name: end - start
        for name, (start, end) in spans.items()
        if start is not None and end is not None
    }
    if record.max_generated > 1 and "request_decode_time_seconds" in found:
        per_token = found["request_decode_time_seconds"] / (record.max_generated - 1)
        found["request_time_per_output_token_seconds"] = per_token
    return found


class StatsCollector(Collector):
    """Reads gauges and counters from the engine at the moment of a scrape."""

    def __init__(self, engine: "AsyncEngine", labels: tuple[str, str]):
        self._engine, self._labels = engine, labels

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        stats = self._engine.stats()
        gauges = {
            "paged_jax:num_requests_running": stats.num_running,
            "paged_jax:num_requests_waiting": stats.num_waiting,
            "paged_jax:kv_cache_usage_perc": stats.usage.num_used / max(1, stats.usage.num_blocks),
            "paged_jax:dead_replicas": stats.num_dead_replicas,
            "paged_jax:kv_slot_use_perc": stats.usage.num_tokens / max(1, self._slots(stats)),
        }
        counters = {
            "paged_jax:prefix_cache_queries": stats.prefix_queries,
            "paged_jax:prefix_cache_hits": stats.prefix_hits,
            "paged_jax:num_preemptions": stats.num_preemptions,
            "paged_jax:prompt_tokens": stats.prompt_tokens,
            "paged_jax:prompt_tokens_cached": stats.prefix_hits,
            "paged_jax:generation_tokens": stats.generation_tokens,
            "paged_jax:compilations": stats.num_compilations,
            "paged_jax:copy_on_write_blocks": stats.num_copies,
        }
        by_source = {
            ("local_compute",): stats.computed_prompt_tokens,
            ("local_cache_hit",): stats.prefix_hits,
        }
        for name, value in gauges.items():
            yield self._gauge(name, value)
        for name, value in counters.items():
            yield self._counter(name, {(): value})
        cached = {("local_cache_hit",): stats.prefix_hits}
        yield self._counter("paged_jax:prompt_tokens_by_source", by_source, ("source",))
        yield self._counter("paged_jax:prompt_tokens_cached_by_source", cached, ("source",))
        yield self._gauge(
            "paged_jax:num_requests_waiting_by_reason", stats.num_waiting, {"reason": "capacity"}
        )
        yield self._gauge("paged_jax:cache_config_info", 1, self._cache_settings())

    def _slots(self, stats: EngineStats) -> int:
        return stats.usage.num_used * self._engine.config.cache.block_size

    def _gauge(
        self, name: str, value: float, labels: dict[str, str] | None = None
    ) -> GaugeMetricFamily:
        labels = labels or {}
        family = GaugeMetricFamily(name, _help(name), labels=(*_LABELS, *labels))
        family.add_metric((*self._labels, *labels.values()), value)
        return family

    def _counter(
        self, name: str, values: dict[tuple[str, ...], int], labels: Iterable[str] = ()
    ) -> CounterMetricFamily:
        family = CounterMetricFamily(name, _help(name), labels=(*_LABELS, *labels))
        for extra, value in values.items():
            family.add_metric((*self._labels, *extra), value)
        return family

    def _cache_settings(self) -> dict[str, str]:
        cache, limits = self._engine.config.cache, self._engine.config.scheduler
        num_tokens = (cache.num_blocks - 1) * cache.block_size
        return {
            "block_size": str(cache.block_size),
            "num_gpu_blocks": str(cache.num_blocks),
            "enable_prefix_caching": str(cache.prefix_caching),
            "kv_cache_size_tokens": str(num_tokens),
            "kv_cache_max_concurrency": f"{num_tokens / limits.max_model_len:.2f}",
        }


def _help(name: str) -> str:
    return name.split(":")[1].replace("_", " ").capitalize()
