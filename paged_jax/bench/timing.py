"""Time a call that takes a state and returns the next one, as every program here does.

Calls are started one after another without waiting, as in serving, and waited for in groups.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import jax
import numpy as np

State = TypeVar("State")


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, over groups of calls; compilation is counted apart."""

    median_s: float
    p90_s: float
    groups: int
    calls: int


@dataclass(frozen=True)
class Effort:
    """How often to call: `warm_up` calls, then `groups` times `calls` in a row."""

    warm_up: int = 3
    groups: int = 7
    calls: int = 5


def measure(call: Callable[[State], State], state: State, effort: Effort) -> Timing:
    """Time `call`; each gets what the last returned. Donates: state, if `call` does."""
    for _ in range(effort.warm_up):
        state = call(state)
    jax.block_until_ready(state)
    seconds: list[float] = []
    for _ in range(effort.groups):
        start = time.perf_counter()
        for _ in range(effort.calls):
            state = call(state)
        jax.block_until_ready(state)
        seconds.append((time.perf_counter() - start) / effort.calls)
    median, p90 = np.percentile(seconds, [50, 90])
    return Timing(float(median), float(p90), effort.groups, effort.calls)
