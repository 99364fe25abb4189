"""Make a small scheduler and requests, and drive them step by step."""

from collections.abc import Iterable

from paged_jax.config import CacheConfig, SchedulerConfig
from paged_jax.host.request import Request, ScheduledStep, TokenDelta
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.host.scheduler import Scheduler

EOS = 2


def make_scheduler(
    num_blocks: int = 65,
    block_size: int = 4,
    budget: int = 64,
    max_seqs: int = 8,
    max_model_len: int = 256,
    policy: str = "fcfs",
    prefix_caching: bool = True,
    partial_reuse: bool = False,
) -> Scheduler:
    config = SchedulerConfig(max_seqs, budget, max_model_len, policy)
    return Scheduler(
        config, CacheConfig(num_blocks, block_size, prefix_caching, partial_reuse=partial_reuse)
    )


def make_request(
    name: str,
    prompt: Iterable[int],
    max_tokens: int = 100,
    *,
    priority: int = 0,
    arrival_s: float = 0.0,
    salt: str | None = None,
    eos_ids: tuple[int, ...] = (EOS,),
    **sampling: object,
) -> Request:
    return Request(
        id=name,
        prompt=tuple(prompt),
        sampling=SamplingParams(**sampling),
        seed=0,
        max_tokens=max_tokens,
        eos_ids=eos_ids,
        priority=priority,
        cache_salt=salt,
        arrival_s=arrival_s,
    )


def fresh(start: int, length: int) -> range:
    """A prompt that shares nothing with those of another start."""
    return range(1000 * start, 1000 * start + length)


def commit(scheduler: Scheduler, step: ScheduledStep, token: int = 7) -> list[TokenDelta]:
    deltas = scheduler.commit(step, [[token] * chunk.num_samples for chunk in step.chunks])
    scheduler.check()
    return deltas


def run_step(scheduler: Scheduler, token: int = 7) -> ScheduledStep:
    step = scheduler.schedule()
    commit(scheduler, step, token)
    return step


def run_to_end(scheduler: Scheduler, limit: int = 1000) -> list[ScheduledStep]:
    steps = []
    while scheduler.has_work:
        steps.append(run_step(scheduler))
        assert len(steps) < limit, "no end in sight"
    assert scheduler.pool.num_free == scheduler.pool.num_usable
    return steps


def shape(step: ScheduledStep) -> list[tuple[str, int, int, int]]:
    return [(c.sequence.request.id, c.start, c.length, c.num_samples) for c in step.chunks]


def first_scheduled(steps: list[ScheduledStep]) -> list[str]:
    return list(dict.fromkeys(c.sequence.request.id for step in steps for c in step.chunks))
