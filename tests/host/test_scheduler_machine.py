"""The scheduler under random requests: see scheduler_machine.py for what must hold."""

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from scheduler_machine import SchedulerMachine


def test_every_position_holds_its_own_history_whatever_happens():
    SchedulerMachine.seen.clear()
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],  # on a busy machine
        ),
    )
    assert len(SchedulerMachine.seen) == 10
    assert all(SchedulerMachine.seen.values()), SchedulerMachine.seen
