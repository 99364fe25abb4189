"""Fit the simulator's cost model to measured steps, by least squares of relative errors; no
coefficient is below zero.

Takes the lines of `bench step`. A decode step reads `num_seqs * context` tokens; a prefill step
sees each of its tokens from each later one.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paged_jax.config import OptionError
from paged_jax.host.buckets import pick, token_buckets
from paged_jax.host.step_cost import StepCost, StepSize


class Sample(NamedTuple):
    """One measured step."""

    size: StepSize
    seconds: float


class Fit(NamedTuple):
    """A cost model and how far it is from what it was fitted to, as shares of the seconds.

    Attributes:
        rms_error: root of the mean squared relative error.
    """

    cost: StepCost
    rms_error: float
    max_error: float


def fit_cost(samples: Sequence[Sample]) -> Fit:
    """Return the cost model with the least squared relative error.

    Raises:
        OptionError: there are too few samples.
    """
    if len(samples) < len(StepSize._fields) + 1:
        raise OptionError(
            f"a cost model needs at least {len(StepSize._fields) + 1} measured steps, not "
            f"{len(samples)}: run bench step with its default sizes"
        )
    seconds = np.array([sample.seconds for sample in samples])
    sizes = np.array([(1, *sample.size) for sample in samples], float)
    solution = _non_negative(sizes / seconds[:, None])
    errors = np.abs(sizes @ solution / seconds - 1)
    cost = StepCost(*solution.tolist())
    return Fit(cost, float(np.sqrt((errors**2).mean())), float(errors.max()))


def _non_negative(rows: np.ndarray) -> np.ndarray:
    """Solve rows @ x = 1; columns whose x comes out negative are left out, one after another."""
    scale = rows.max(axis=0)
    active = scale > 0
    solution = np.zeros(len(scale))
    while active.any():
        found = np.linalg.lstsq(rows[:, active] / scale[active], np.ones(len(rows)), rcond=None)[0]
        solution[:] = 0
        solution[active] = found / scale[active]
        if found.min() >= 0:
            break
        active[solution.argmin()] = False
    return solution


def read_samples(path: Path, *, max_tokens: int = 512) -> list[Sample]:
    """Read the lines of `bench step`.

    Args:
        max_tokens: the token budget they were measured with.
    Raises:
        OptionError: the file is not one of those.
    """
    try:
        records = [json.loads(line) for line in path.read_text().splitlines() if line]
        return [sample_of(record, max_tokens) for record in records]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(f"--cost {path} must be a file of bench step: {error!r}") from error


def sample_of(record: dict, max_tokens: int) -> Sample:
    """Return a line of `bench step` as a sample."""
    num_tokens, num_seqs = record["num_tokens"], record["num_seqs"]
    is_decode = record["kind"] == "decode"
    pairs = 0 if is_decode else num_tokens * (num_tokens + 1) // 2
    padding = pick(token_buckets(max(max_tokens, num_tokens)), num_tokens) - num_tokens
    context = round(num_seqs * record["context"])
    return Sample(StepSize(num_tokens, num_seqs, context, pairs, padding), record["median_s"])
