"""What a run comes to: rates, waiting, memory use and fairness, from its records."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import fmean

from paged_jax.host.trace import RequestRecord, StepRecord


@dataclass(frozen=True)
class Summary:
    """The figures of a run; times in seconds, shares from 0 to 1.

    Attributes:
        duration_s: from the first step's start to the last one's end.
        num_scheduled: tokens computed, recomputed ones included.
        ttft_mean_s: from arrival to the first token; also median and 99th percentile.
        tpot_mean_s: between tokens.
        slot_use: tokens held of the slots allocated; the rest is waste inside of blocks.
        pool_use: blocks held of those there are.
        num_running_mean: sequences at once, over time.
        hit_rate: prompt tokens found in the prefix cache.
    """

    duration_s: float
    num_steps: int
    num_requests: int
    num_scheduled: int
    num_generated: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    slot_use: float
    pool_use: float
    num_running_mean: float
    num_preemptions: int
    hit_rate: float

    @property
    def throughput(self) -> float:
        """Generated tokens per second."""
        return self.num_generated / self.duration_s

    @property
    def waste(self) -> float:
        """Share of the allocated slots that hold no token."""
        return 1 - self.slot_use


def summarise(
    steps: Collection[StepRecord], requests: Collection[RequestRecord], *, block_size: int
) -> Summary:
    """Return the figures of a run that had at least one step and one request."""
    first_s = min(step.start_s for step in steps)
    last_s = max(step.start_s + step.duration_s for step in steps)
    ttfts_s = [r.first_token_s - r.arrival_s for r in requests if r.first_token_s is not None]
    gaps_s = [gap for request in requests for gap in request.token_gaps_s]
    queries = sum(request.num_prompt_tokens for request in requests)
    return Summary(
        duration_s=last_s - first_s,
        num_steps=len(steps),
        num_requests=len(requests),
        num_scheduled=sum(step.num_tokens for step in steps),
        num_generated=sum(step.num_generated for step in steps),
        ttft_mean_s=fmean(ttfts_s),
        ttft_p50_s=percentile(ttfts_s, 50),
        ttft_p99_s=percentile(ttfts_s, 99),
        tpot_mean_s=fmean(gaps_s) if gaps_s else 0.0,
        slot_use=slot_use(steps, block_size),
        pool_use=fmean(step.usage.num_used / step.usage.num_blocks for step in steps),
        num_running_mean=sum(s.num_running * s.duration_s for s in steps) / (last_s - first_s),
        num_preemptions=sum(step.num_preempted for step in steps),
        hit_rate=sum(r.num_cached_tokens for r in requests) / queries,
    )


def slot_use(steps: Iterable[StepRecord], block_size: int) -> float:
    """Return the mean share of allocated slots that hold a token, over steps that hold blocks."""
    usages = [step.usage for step in steps if step.usage.num_used]
    return fmean(usage.num_tokens / (usage.num_used * block_size) for usage in usages)


def percentile(values: Collection[float], percent: float) -> float:
    """Return the value that so many percent of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def jain(shares: Collection[float]) -> float:
    """Return Jain's index of fairness: 1 if all are equal, 1 / n if one has all.

    Source: Jain, Chiu and Hawe 1984, DEC-TR-301.
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0
