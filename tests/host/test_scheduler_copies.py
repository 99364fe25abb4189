"""Blocks copied and freed in one step: two stories the random runs once found, told by hand."""

from itertools import count

from scheduler_machine import SchedulerMachine

from paged_jax.host.request import ScheduledStep


def make_machine(num_blocks: int, budget: int) -> SchedulerMachine:
    machine = SchedulerMachine()
    machine.start(
        num_blocks=num_blocks,
        max_seqs=8,
        budget=budget,
        policy="priority",
        prefix_caching=True,
        partial_reuse=False,
        is_ahead=False,
    )
    return machine


def add_to(machine: SchedulerMachine, prompt: tuple[int, ...], n: int, priority: int) -> None:
    machine.add(prompt=prompt, n=n, max_tokens=6, priority=priority, salt=None, is_scored=False)


def run_story(machine: SchedulerMachine) -> ScheduledStep:
    """One step of distinct tokens, with all checks."""
    steps: list[ScheduledStep] = []
    schedule, tokens = machine.scheduler.schedule, count(10)
    machine.scheduler.schedule = lambda **_: steps.append(schedule()) or steps[-1]
    machine.run_step(lambda: next(tokens))
    machine.scheduler.schedule = schedule
    machine.computed_positions_hold_their_history()
    return steps[0]


def test_a_freed_copy_source_may_be_the_target_of_another_copy_in_the_same_step():
    machine = make_machine(num_blocks=6, budget=6)
    add_to(machine, tuple(range(10)), n=2, priority=1)
    run_story(machine)
    add_to(machine, (1, 1), n=2, priority=0)
    run_story(machine)

    step = run_story(machine)

    assert step.copies == ((3, 5), (4, 3))
    machine.teardown()


def test_the_target_of_a_dropped_copy_may_be_the_target_of_another_copy_in_the_same_step():
    machine = make_machine(num_blocks=11, budget=12)
    add_to(machine, tuple(range(22)), n=3, priority=1)
    run_story(machine)
    add_to(machine, (1,), n=2, priority=0)
    add_to(machine, (3,), n=2, priority=0)
    run_story(machine)

    step = run_story(machine)

    assert [sequence.rank[-1] for sequence in step.preempted] == [2, 1]
    assert step.copies == ((6, 9), (7, 6), (8, 10))
    machine.teardown()
