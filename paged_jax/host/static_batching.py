"""Static batching, the baseline: a batch is filled once and runs until its last sequence ends."""

from paged_jax.host.plan import StepPlan
from paged_jax.host.request import ScheduledStep
from paged_jax.host.scheduler import Scheduler
from paged_jax.host.simulate import ModelledTiming
from paged_jax.host.step_cost import StepCost


class StaticScheduler(Scheduler):
    """Admits requests only until its batch is full; then nobody until all of the batch have ended.

    A batch is as large as seats, blocks and the queue allow. Blocks of sequences that have ended
    are released at once, which flatters it.
    """

    _is_open = True
    _batch_size = 0

    def num_padding(self, step: ScheduledStep) -> int:
        """Return the places of a closed batch whose sequence takes no part in a step any more."""
        return 0 if self._is_open else max(0, self._batch_size - len(step.chunks))

    def _admit_waiting(self, plan: StepPlan) -> None:
        if not self.num_running:
            self._is_open, self._batch_size = True, 0
        if self._is_open:
            super()._admit_waiting(plan)
            self._batch_size = max(self._batch_size, self._queues.num_seats_taken)
            self._is_open = plan.budget == 0 and self.num_waiting > 0


class StaticTiming(ModelledTiming):
    """Charges the padding of a static batch."""

    def __init__(self, cost: StepCost, scheduler: StaticScheduler):
        super().__init__(cost, scheduler)
        self._batches = scheduler

    def num_padding(self, step: ScheduledStep) -> int:
        """Return the places of the batch that are computed though their sequence has ended."""
        return self._batches.num_padding(step)
