"""How much of the allocated KV memory holds tokens: 64 mixed requests, the real scheduler."""

import math

import numpy as np

from paged_jax.config import CacheConfig, SchedulerConfig
from paged_jax.host.request import Request
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.host.scheduler import Scheduler

BLOCK_SIZE = 16
MAX_MODEL_LEN = 8192


def make_mixed_requests(count: int) -> list[Request]:
    """Prompts of 16 to 512 tokens, answers of 16 to 256, uniform; no two prompts share a block."""
    draw = np.random.default_rng(0)
    prompt_lens = draw.integers(16, 513, size=count).tolist()
    answer_lens = draw.integers(16, 257, size=count).tolist()
    requests = []
    for index, (size, wanted) in enumerate(zip(prompt_lens, answer_lens, strict=True)):
        prompt = tuple(draw.integers(100, 49152, size=size).tolist())
        params = SamplingParams(max_tokens=wanted, ignore_eos=True)
        requests.append(
            Request(id=str(index), prompt=prompt, sampling=params, seed=0, max_tokens=wanted)
        )
    return requests


def shares_of_a_run(requests: list[Request]) -> tuple[list[float], list[float]]:
    """Share of allocated slots that hold a token after each step: paged, and contiguous."""
    limits = SchedulerConfig(max_seqs=64, max_tokens_per_step=512, max_model_len=MAX_MODEL_LEN)
    scheduler = Scheduler(limits, CacheConfig(num_blocks=4096, block_size=BLOCK_SIZE))
    for request in requests:
        scheduler.add(request)
    paged, contiguous = [], []
    while scheduler.has_work:
        step = scheduler.schedule()
        usage, running = scheduler.usage(), scheduler.num_running
        paged.append(usage.num_tokens / (usage.num_used * BLOCK_SIZE))
        contiguous.append(usage.num_tokens / (running * MAX_MODEL_LEN))
        scheduler.commit(step, [[100] * chunk.num_samples for chunk in step.chunks])
    return paged, contiguous


def test_at_least_95_percent_of_allocated_slots_hold_tokens() -> None:
    paged, contiguous = shares_of_a_run(make_mixed_requests(64))

    mean = math.fsum(paged) / len(paged)
    flat = math.fsum(contiguous) / len(contiguous)
    print(
        f"{len(paged)} steps, block size {BLOCK_SIZE}: {mean:.1%} of allocated slots hold a token "
        f"(least {min(paged):.1%}); contiguous slots of {MAX_MODEL_LEN} tokens: {flat:.1%}"
    )
    assert mean >= 0.95
    assert flat < 0.1
