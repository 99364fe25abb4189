"""Records of what happened, made the same way by an engine and by a simulation."""

from paged_jax.host.request import ScheduledStep
from paged_jax.host.scheduler import Scheduler
from paged_jax.host.trace import StepRecord


def step_record(
    scheduler: Scheduler, work: ScheduledStep, *, times_s: tuple[float, float], num_drawn: int
) -> StepRecord:
    """Return the record of a step that was just committed; `times_s` are its start and end."""
    return StepRecord(
        start_s=times_s[0],
        duration_s=times_s[1] - times_s[0],
        num_tokens=work.num_tokens,
        num_prompt_tokens=work.num_prompt_tokens,
        num_generated=num_drawn,
        num_running=scheduler.num_running,
        num_waiting=scheduler.num_waiting,
        num_copies=len(work.copies),
        num_preempted=len(work.preempted),
        usage=scheduler.usage(),
    )
