"""The first failure is told before the process ends, and before whoever waits for it goes on."""

import os
import threading

import pytest

from paged_jax.cluster.failure import Failure


@pytest.fixture
def ended(monkeypatch) -> threading.Event:
    """Set where the process would end."""
    event = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: code == 1 and event.set())
    return event


def test_who_waits_goes_on_after_the_first_failure_was_told(ended, capsys) -> None:
    told, failure = list[tuple[str, bool]](), Failure(grace_s=0.0)
    failure.on_failure = lambda sentence: told.append((sentence, failure.wait(0.05)))
    failure.report("rank 1 is lost")
    failure.report("a step failed")
    assert failure.wait(0) and told == [("rank 1 is lost", False)]
    assert capsys.readouterr().err == "error: rank 1 is lost\n" and ended.wait(5)


def test_a_step_that_a_lost_rank_made_fail_is_not_the_reason(ended, capsys) -> None:
    failure = Failure(grace_s=0.0)
    step = threading.Thread(target=failure.report_step, args=("a step failed",))
    step.start()
    failure.report("rank 0 is lost")
    step.join()
    assert capsys.readouterr().err == "error: rank 0 is lost\n" and ended.wait(5)


def test_after_an_orderly_end_nothing_is_a_failure(ended, capsys) -> None:
    failure = Failure(grace_s=0.0)
    assert failure.settle() and not failure.settle()
    failure.report("rank 1 is lost")
    assert not failure.wait(0) and not capsys.readouterr().err and not ended.is_set()
