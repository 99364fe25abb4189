"""From the times of single tokens to the figures people compare; the names are vLLM's.

TTFT is the time to the first token, TPOT the mean time per token after it, ITL the gap between two
events, E2EL the whole latency.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from paged_jax.config import OptionError

METRICS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
Figures = dict[str, float | int | None]


@dataclass(frozen=True)
class Outcome:
    """What became of one request. Times are seconds of one monotonic clock.

    Attributes:
        times_s: when each event with tokens was seen; over HTTP one may carry several tokens.
        error: why the request failed; None if it did not.
    """

    prompt_len: int
    output_len: int
    start_s: float
    times_s: Sequence[float] = ()
    error: str | None = None
    token_ids: Sequence[int] = field(default=(), repr=False)

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.times_s[0] - self.start_s

    @property
    def latency_s(self) -> float:
        """Time to the last token."""
        return self.times_s[-1] - self.start_s

    @property
    def tpot_s(self) -> float:
        """Mean time of a token after the first; 0 where there is no second."""
        return (self.latency_s - self.ttft_s) / max(1, self.output_len - 1)

    @property
    def itls_s(self) -> list[float]:
        """Gaps between events."""
        return [later - earlier for earlier, later in zip(self.times_s, self.times_s[1:])]  # noqa: B905


def samples_ms(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """Return the milliseconds of every metric, over the requests that succeeded."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    return {
        "ttft": [1e3 * outcome.ttft_s for outcome in good],
        "tpot": [1e3 * outcome.tpot_s for outcome in good if outcome.output_len > 1],
        "itl": [1e3 * gap for outcome in good for gap in outcome.itls_s],
        "e2el": [1e3 * outcome.latency_s for outcome in good],
    }


def summarise(
    outcomes: Sequence[Outcome],
    duration_s: float,
    *,
    percentiles: Sequence[float] = (50, 90, 99),
    goodput: Mapping[str, float] | None = None,
) -> Figures:
    """Return vLLM's keys for a run.

    Args:
        duration_s: wall time of the whole run.
        goodput: metric -> milliseconds that a request must not exceed.
    """
    good = [outcome for outcome in outcomes if outcome.error is None]
    num_input = sum(outcome.prompt_len for outcome in good)
    num_output = sum(outcome.output_len for outcome in good)
    figures: Figures = {
        "duration": duration_s,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(good) / duration_s,
        "request_goodput": goodput and num_meeting(good, goodput) / duration_s,  # type: ignore[dict-item]
        "output_throughput": num_output / duration_s,
        "total_token_throughput": (num_input + num_output) / duration_s,
        "max_output_tokens_per_s": peak_rate(good),
        "max_concurrent_requests": peak_concurrency(good),
    }
    for name, values in samples_ms(outcomes).items():
        figures |= spread(name, values, percentiles)
    return figures


def spread(name: str, values_ms: Sequence[float], percentiles: Sequence[float]) -> Figures:
    """Return mean, median, standard deviation and percentiles; 0 where there are no values."""
    values = np.asarray(values_ms if len(values_ms) else [0.0])
    figures: Figures = {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
    }
    for percent in percentiles:
        figures[f"p{percent:g}_{name}_ms"] = float(np.percentile(values, percent))
    return figures


def num_meeting(outcomes: Sequence[Outcome], goodput: Mapping[str, float]) -> int:
    """Count the requests that exceed none of the limits (milliseconds)."""
    values = {"ttft": "ttft_s", "tpot": "tpot_s", "e2el": "latency_s"}
    return sum(
        all(1e3 * getattr(outcome, values[name]) <= limit for name, limit in goodput.items())
        for outcome in outcomes
    )


def read_goodput(words: Sequence[str] | None) -> dict[str, float] | None:
    """Read `ttft:500 tpot:50 e2el:3000` (milliseconds).

    Raises:
        OptionError: a word is not a metric and a positive number.
    """
    limits: dict[str, float] = {}
    for word in words or ():
        name, _, value = word.partition(":")
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = -1.0
        if name not in ("ttft", "tpot", "e2el") or limits[name] <= 0:
            raise OptionError(f"--goodput takes ttft:MS, tpot:MS and e2el:MS, not {word!r}")
    return limits or None


def peak_rate(outcomes: Sequence[Outcome]) -> float:
    """Return the most output tokens within one second of the run."""
    if not outcomes:
        return 0.0
    start = min(outcome.start_s for outcome in outcomes)
    events = [
        (int(at - start), outcome.output_len / len(outcome.times_s))
        for outcome in outcomes
        for at in outcome.times_s
    ]
    seconds, tokens = zip(*events, strict=True)
    return float(np.bincount(seconds, weights=tokens).max())


def peak_concurrency(outcomes: Sequence[Outcome]) -> int:
    """Return the most requests that were under way at one time."""
    edges = [(outcome.start_s, 1) for outcome in outcomes]
    edges += [(outcome.times_s[-1], -1) for outcome in outcomes]
    running = np.cumsum([change for _, change in sorted(edges)])
    return int(running.max(initial=0))
