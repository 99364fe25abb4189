"""What `LLM.get_metrics` tells: the engine's counters and gauges, under vLLM's names."""

from collections.abc import Iterator
from dataclasses import dataclass

from paged_jax.host.trace import EngineStats


@dataclass(frozen=True)
class Metric:
    """One counter or gauge, under the name it has at the server's /metrics."""

    name: str
    value: float


def metrics_of(stats: EngineStats) -> Iterator[Metric]:
    """Yield each of them."""
    usage = stats.usage
    yield Metric("vllm:num_requests_running", stats.num_running)
    yield Metric("vllm:num_requests_waiting", stats.num_waiting)
    yield Metric("vllm:kv_cache_usage_perc", usage.num_used / max(1, usage.num_blocks))
    yield Metric("vllm:prefix_cache_queries", stats.prefix_queries)
    yield Metric("vllm:prefix_cache_hits", stats.prefix_hits)
    yield Metric("vllm:num_preemptions", stats.num_preemptions)
    yield Metric("vllm:prompt_tokens", stats.prompt_tokens)
    yield Metric("vllm:generation_tokens", stats.generation_tokens)
    yield Metric("paged_jax:copy_on_write_blocks", stats.num_copies)
    yield Metric("paged_jax:compilations", stats.num_compilations)
