"""Log lines: about the load every few seconds, and on request about each request that ended."""

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paged_jax.host.trace import EngineStats, RequestRecord, StepRecord
from server.state import ServerSettings

if TYPE_CHECKING:
    from paged_jax.async_engine import AsyncEngine

logger = logging.getLogger("paged_jax")


async def log_load(engine: "AsyncEngine", settings: ServerSettings) -> None:
    """Log a line every `log_interval_s` in which something ran; never returns while it is on."""
    before, hit_rate = engine.stats(), None
    while settings.log_interval_s:
        await asyncio.sleep(settings.log_interval_s)
        now = engine.stats()
        line = LoadLine(before, now, settings.log_interval_s, settings.platform, hit_rate)
        hit_rate, before = line.hit_rate, now
        if line.is_busy:
            logger.info("%s", line)


class RequestLog:
    """An EngineObserver that logs each request as it ends. It knows no texts, so it tells none."""

    def on_step(self, record: StepRecord) -> None:
        """Do nothing."""

    def on_finish(self, record: RequestRecord) -> None:
        """Log one line."""
        told = {
            "request_id": record.id,
            "finish_reasons": ",".join(record.finish_reasons),
            "prompt_tokens": record.num_prompt_tokens,
            "cached_tokens": record.num_cached_tokens,
            "completion_tokens": record.num_generated,
            "preemptions": record.num_preemptions,
            "seconds": round(record.finish_s - record.arrival_s, 3),
        }
        words = " ".join(f"{name}={value}" for name, value in told.items())
        logger.info("Request ended: %s", words, extra={"fields": told})


@dataclass(frozen=True)
class LoadLine:
    """What happened between two moments `seconds` apart."""

    before: EngineStats
    now: EngineStats
    seconds: float
    platform: str
    last_hit_rate: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether any token was computed or any request waits."""
        now, before = self.now, self.before
        num_tokens = now.generation_tokens + now.computed_prompt_tokens
        has_moved = num_tokens != before.generation_tokens + before.computed_prompt_tokens
        return has_moved or now.num_running + now.num_waiting > 0

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompt tokens looked up that were cached; the last known where none were."""
        queries = self.now.prefix_queries - self.before.prefix_queries
        if not queries:
            return self.last_hit_rate
        return (self.now.prefix_hits - self.before.prefix_hits) / queries

    def __str__(self) -> str:
        now, usage = self.now, self.now.usage
        used_percent = 100 * usage.num_used / max(1, usage.num_blocks)
        prompt = now.computed_prompt_tokens - self.before.computed_prompt_tokens
        generation = now.generation_tokens - self.before.generation_tokens
        parts = [
            f"Avg prompt throughput: {prompt / self.seconds:.1f} tokens/s",
            f"Avg generation throughput: {generation / self.seconds:.1f} tokens/s",
            f"Running: {now.num_running} reqs",
            f"Waiting: {now.num_waiting} reqs",
            f"{self.platform} KV cache usage: {used_percent:.1f}%",
        ]
        if self.hit_rate is not None:
            parts.append(f"Prefix cache hit rate: {100 * self.hit_rate:.1f}%")
        return "Engine 000: " + ", ".join(parts)
