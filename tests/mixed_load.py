"""Requests of every kind: choices, stop strings, penalties, log-probabilities, early ends."""

from paged_jax import SamplingParams

BIAS = {2: 9.0}  # makes the model's end of sequence likely enough to occur here and there
KINDS: tuple[dict[str, object], ...] = (
    {"temperature": 0.0, "ignore_eos": True},
    {"temperature": 1.0, "n": 3, "logprobs": 2},
    {"temperature": 1.0, "logit_bias": BIAS},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 1.3, "stop": ["e", "q", "th"], "min_tokens": 2},
    {"temperature": 0.7, "prompt_logprobs": 1, "min_tokens": 6, "logit_bias": BIAS},
    {"temperature": 1.0, "n": 2, "presence_penalty": 1.0, "stop_token_ids": list(range(40, 90))},
)


def make_load(count: int) -> tuple[list[list[int]], list[SamplingParams]]:
    prompts = [
        [3 + (7 * at + index) % 250 for at in range(5 + 9 * (index % 6))] for index in range(count)
    ]
    params = [
        SamplingParams(**KINDS[index % len(KINDS)], seed=index, max_tokens=6 + index % 19)  # type: ignore[arg-type]
        for index in range(count)
    ]
    return prompts, params
