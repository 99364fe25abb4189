"""When requests are sent: all at once, at random moments, or as earlier ones end."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

from paged_jax.bench.client import Ask, Endpoint, ask
from paged_jax.bench.metrics import Outcome
from paged_jax.config import OptionError


@dataclass(frozen=True)
class Pace:
    """How requests arrive.

    Attributes:
        request_rate: requests per second; infinite sends all at once.
        burstiness: shape of the gamma distribution of the gaps; 1 is a Poisson process, less is
            burstier.
        max_concurrency: requests under way at once; None is no limit.
    """

    request_rate: float = math.inf
    burstiness: float = 1.0
    max_concurrency: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("request_rate", "burstiness"):
            if not getattr(self, name) > 0:
                flag = "--" + name.replace("_", "-")
                raise OptionError(f"{flag} must be above 0, not {getattr(self, name)}")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise OptionError(f"--max-concurrency must be at least 1, not {self.max_concurrency}")

    def arrivals_s(self, count: int) -> list[float]:
        """Return when each of `count` requests is sent, in seconds after the start."""
        if math.isinf(self.request_rate):
            return [0.0] * count
        scale = 1 / (self.request_rate * self.burstiness)
        rng = np.random.default_rng(self.seed)
        return np.cumsum(rng.gamma(self.burstiness, scale, size=count)).tolist()


async def send_all(
    endpoint: Endpoint,
    questions: Sequence[Ask],
    pace: Pace,
    send: Callable[[Endpoint, Ask], Awaitable[Outcome]] = ask,
) -> tuple[list[Outcome], float]:
    """Send every request at its time; return what became of each, and the seconds it all took.

    A request's own clock starts when it is sent, after waiting for its turn under
    `max_concurrency`.
    """
    gate = asyncio.Semaphore(pace.max_concurrency) if pace.max_concurrency else nullcontext()
    start = time.perf_counter()

    async def one(question: Ask, at_s: float) -> Outcome:
        await asyncio.sleep(max(0.0, start + at_s - time.perf_counter()))
        async with gate:
            return await send(endpoint, question)

    arrivals = pace.arrivals_s(len(questions))
    tasks = [one(question, at) for question, at in zip(questions, arrivals, strict=True)]
    outcomes = await asyncio.gather(*tasks)
    return list(outcomes), time.perf_counter() - start
