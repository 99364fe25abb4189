"""Sampling as vLLM orders it, written out in numpy float64, and rows to try it on."""

import functools

import jax
import numpy as np

from paged_jax.device.logprobs import SampleOutput
from paged_jax.device.sampling import sample
from paged_jax.device.sampling_rows import RowShape, pack_rows
from paged_jax.host.request import Request, Sequence
from paged_jax.host.sampling_params import SamplingParams

VOCAB = 700  # more than the candidates the filters look at first
SHAPE = RowShape(rows=16, context=40, biases=8)
PROMPT = (3, 5, 3, 650)
jitted = jax.jit(functools.partial(sample, max_logprobs=4))


def make_sequence(
    prompt: tuple[int, ...] = PROMPT, output: tuple[int, ...] = (), seed: int = 1, **params
) -> Sequence:
    sampling = SamplingParams(**params)
    request = Request(
        id="r", prompt=prompt, sampling=sampling, seed=seed, max_tokens=9, eos_ids=(7,)
    )
    return Sequence(request, output=list(output))


def draw(logits: np.ndarray, sequences: list[Sequence], shape: RowShape = SHAPE) -> SampleOutput:
    """Sample sequence i from row i of the logits; the other rows are padding."""
    rows = pack_rows([(sequence, sequence.index) for sequence in sequences], shape)
    table = np.zeros((shape.rows, logits.shape[-1]), np.float32)
    table[: len(sequences)] = logits[: len(sequences)]
    return jax.tree.map(np.asarray, jitted(table, rows))


def draw_tokens(logits: np.ndarray, sequences: list[Sequence]) -> list[int]:
    return draw(logits, sequences).tokens[: len(sequences)].tolist()


def change_logits(logits: np.ndarray, sequence: Sequence) -> np.ndarray:
    """Minimum length, bias and penalties, in vLLM's order."""
    params, x = sequence.request.sampling, logits.astype(np.float64)
    if len(sequence.output) < params.min_tokens:
        x[[*sequence.request.eos_ids, *params.stop_ids]] = -np.inf
    for token, bias in (params.logit_bias or {}).items():
        x[token] += min(100, max(-100, bias))
    seen = list({*sequence.request.prompt, *sequence.output})
    r = params.repetition_penalty
    x[seen] = np.where(x[seen] > 0, x[seen] / r, x[seen] * r)
    counts = np.bincount(sequence.output, minlength=len(x))
    return x - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def distribution(logits: np.ndarray, sequence: Sequence) -> np.ndarray:
    """The probabilities a token is drawn from; no ties."""
    params, x = sequence.request.sampling, change_logits(logits, sequence)
    x = x / params.temperature
    p = softmax(x)
    x[p < params.min_p * p.max()] = -np.inf
    order = np.argsort(-x)
    if params.top_k:
        x[order[params.top_k :]] = -np.inf
    before = np.cumsum(softmax(x)[order]) - softmax(x)[order]
    x[order[before >= params.top_p]] = -np.inf
    return softmax(x)


def make_settings(rng: np.random.Generator, **fixed) -> dict:
    """One random mix of everything."""
    pick = lambda *values: values[rng.integers(len(values))]  # noqa: E731
    mix = {
        "temperature": pick(0.3, 0.8, 1.0, 2.0),
        "top_k": pick(0, 2, 40, 400),
        "top_p": pick(1.0, 0.999, 0.9, 0.3),
        "min_p": pick(0.0, 0.0, 0.05),
        "repetition_penalty": pick(1.0, 1.3, 0.8),
        "frequency_penalty": pick(0.0, 0.5, -1.0),
        "presence_penalty": pick(0.0, 1.5),
        "logit_bias": pick({}, {3: 2.5, 9: -100, 11: 1000}),
        "min_tokens": pick(0, 5),
        "stop_token_ids": pick((), (5, 12)),
    }
    return mix | fixed


def make_mixed(rng: np.random.Generator, **fixed) -> list[Sequence]:
    outputs = [tuple(rng.integers(0, 20, size=rng.integers(0, 30))) for _ in range(SHAPE.rows)]
    return [
        make_sequence(output=tuple(map(int, output)), seed=seed, **make_settings(rng, **fixed))
        for seed, output in enumerate(outputs)
    ]
