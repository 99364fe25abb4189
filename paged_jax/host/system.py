"""A serving system to simulate: how large its pool is, how it allocates, batches and orders."""

from collections.abc import Iterable
from dataclasses import dataclass

from paged_jax.config import CacheConfig, SchedulerConfig
from paged_jax.host.policies import Policy
from paged_jax.host.request import Request
from paged_jax.host.scheduler import Scheduler
from paged_jax.host.simulate import ModelledTiming, Simulation
from paged_jax.host.static_batching import StaticScheduler, StaticTiming
from paged_jax.host.step_cost import StepCost
from paged_jax.host.summary import Summary, summarise


@dataclass(frozen=True)
class System:
    """One system; the fields without a comment are the engine's options.

    Attributes:
        pool_tokens: slots of the KV pool.
        is_contiguous: a sequence reserves room for `max_model_len` tokens in one piece, which is
            paging with blocks of that size.
        is_static: a batch runs until its last sequence ends before the next is admitted.
    """

    pool_tokens: int = 16_384
    block_size: int = 16
    max_seqs: int = 64
    max_tokens_per_step: int = 512
    max_model_len: int = 1024
    policy: str = "fcfs"
    prefix_caching: bool = True
    is_contiguous: bool = False
    is_static: bool = False

    @property
    def cache(self) -> CacheConfig:
        """The pool as blocks."""
        size = self.max_model_len if self.is_contiguous else self.block_size
        caching = self.prefix_caching and not self.is_contiguous
        return CacheConfig(1 + self.pool_tokens // size, size, caching)

    @property
    def limits(self) -> SchedulerConfig:
        """The limits of a step."""
        return SchedulerConfig(
            self.max_seqs, self.max_tokens_per_step, self.max_model_len, self.policy
        )

    def simulation(
        self, requests: Iterable[Request], cost: StepCost, *, policy: Policy | None = None
    ) -> Simulation:
        """Return a simulation that has not begun; `policy` stands for the named one."""
        if self.is_static:
            batches = StaticScheduler(self.limits, self.cache, policy=policy)
            return Simulation(batches, requests, StaticTiming(cost, batches))
        scheduler = Scheduler(self.limits, self.cache, policy=policy)
        return Simulation(scheduler, requests, ModelledTiming(cost, scheduler))

    def summary(self, requests: Iterable[Request], cost: StepCost) -> Summary:
        """Simulate to the end and return the figures."""
        run = self.simulation(requests, cost).run()
        return summarise(run.steps, run.requests, block_size=self.cache.block_size)
