"""What a server says of itself at /metrics, in Prometheus' text format, while it is under load."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable
from typing import TypeVar

from paged_jax.bench.client import Endpoint, HttpError, fetch
from paged_jax.bench.metrics import Figures

SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{[^}]*\})? ([-+.\w]+)")
INTERVAL_S = 0.5
_MEMORY = "process_resident_memory_bytes"
_ALLOCATED = "paged_jax:kv_cache_usage_perc"
_FILLED = "paged_jax:kv_slot_use_perc"
Result = TypeVar("Result")
Samples = dict[str, float]


def read_samples(text: str) -> Samples:
    """Return the values of all metrics; those with several labels are added up.

    A server that speaks of `vllm:` alone is read as if it said `paged_jax:`.
    """
    values: defaultdict[str, float] = defaultdict(float)
    for line in text.splitlines():
        if match := SAMPLE.match(line):
            values[match[1]] += float(match[2])
    renamed = {name.replace("vllm:", "paged_jax:", 1): value for name, value in values.items()}
    return renamed | values


async def watched(endpoint: Endpoint, work: Awaitable[Result]) -> tuple[Result, Figures]:
    """Await `work`, scraping meanwhile; return its result and what the scrapes say.

    Figures that the server does not give are None.
    """
    samples = [await _scrape(endpoint)]
    watcher = asyncio.create_task(_watch(endpoint, samples))
    try:
        result = await work
    finally:
        watcher.cancel()
    samples.append(await _scrape(endpoint))
    return result, summarise_samples(samples)


def summarise_samples(samples: list[Samples]) -> Figures:
    """Return memory, KV use, prefix hits and compilations out of successive scrapes."""
    memory = [s[_MEMORY] for s in samples if _MEMORY in s]
    allocated = [s[_ALLOCATED] for s in samples if s.get(_ALLOCATED)]
    filled = [s[_FILLED] for s in samples if s.get(_FILLED)]
    queries = _growth(samples, "paged_jax:prefix_cache_queries_total")
    hits = _growth(samples, "paged_jax:prefix_cache_hits_total")
    compiled = _growth(samples, "paged_jax:compilations_total")
    return {
        "peak_rss_bytes": int(max(memory)) if memory else None,
        "kv_slot_use_mean": sum(filled) / len(filled) if filled else None,
        "kv_slot_use_max": max(filled, default=None),
        "kv_cache_usage_mean": sum(allocated) / len(allocated) if allocated else None,
        "kv_cache_usage_max": max(allocated, default=None),
        "prefix_hit_rate": None if not queries or hits is None else hits / queries,
        "num_compilations": None if compiled is None else int(compiled),
    }


def _growth(samples: list[Samples], name: str) -> float | None:
    if name not in samples[0] or name not in samples[-1]:
        return None
    return samples[-1][name] - samples[0][name]


async def _watch(endpoint: Endpoint, samples: list[Samples]) -> None:
    while True:
        await asyncio.sleep(INTERVAL_S)
        samples.append(await _scrape(endpoint))


async def _scrape(endpoint: Endpoint) -> Samples:
    """Return what there is; nothing from a server without metrics."""
    try:
        return read_samples(await fetch(endpoint, "/metrics"))
    except (OSError, EOFError, ValueError, HttpError):
        return {}
