"""How sequences end: by a token, by length, by a stop string, by an abort."""

from collections.abc import Callable

import pytest
from stories import EOS, commit, fresh, make_request, make_scheduler, run_step, run_to_end, shape

from paged_jax.host.request import FinishReason, Sequence
from paged_jax.host.scheduler import Scheduler


def finish_one(token: int, num_tokens: int = 1, **options: object) -> Sequence:
    scheduler = make_scheduler()
    sequence = scheduler.add(make_request("a", fresh(1, 4), **options))
    for _ in range(num_tokens):
        run_step(scheduler, token)
    return sequence


@pytest.mark.parametrize(
    ("token", "options", "reason", "stop_reason"),
    [
        (EOS, {}, FinishReason.STOP, None),
        (EOS, {"ignore_eos": True}, None, None),
        (EOS, {"min_tokens": 2}, None, None),
        (EOS, {"stop_token_ids": [EOS]}, FinishReason.STOP, None),
        (EOS, {"stop_token_ids": [EOS], "ignore_eos": True}, FinishReason.STOP, EOS),
        (EOS, {"max_tokens": 1}, FinishReason.STOP, None),
        (9, {"stop_token_ids": [9]}, FinishReason.STOP, 9),
        (9, {"stop_token_ids": [9], "min_tokens": 2}, None, None),
        (9, {"stop_token_ids": [9], "max_tokens": 1}, FinishReason.STOP, 9),
        (9, {"max_tokens": 1}, FinishReason.LENGTH, None),
        (9, {}, None, None),
    ],
)
def test_a_token_ends_its_sequence(token, options, reason, stop_reason):
    sequence = finish_one(token, **options)

    assert (sequence.finish_reason, sequence.stop_reason) == (reason, stop_reason)
    assert sequence.output == [token]


def test_eos_ends_a_sequence_from_min_tokens_on():
    sequence = finish_one(EOS, num_tokens=2, min_tokens=2)

    assert sequence.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("token", [EOS, 5])
def test_every_end_token_obeys_both_switches(token):
    ids = (EOS, 5)
    assert finish_one(token, eos_ids=ids).finish_reason is FinishReason.STOP
    ignored = finish_one(token, eos_ids=ids, ignore_eos=True)
    held_off = finish_one(token, eos_ids=ids, min_tokens=2)
    own = finish_one(token, eos_ids=ids, ignore_eos=True, stop_token_ids=[token])
    assert ignored.finish_reason is held_off.finish_reason is None
    assert (own.finish_reason, own.stop_reason) == (FinishReason.STOP, token)


def test_a_sequence_ends_when_the_context_is_full():
    scheduler = make_scheduler(max_model_len=10)
    sequence = scheduler.add(make_request("a", fresh(1, 7)))

    run_to_end(scheduler)

    assert (sequence.finish_reason, sequence.num_tokens) == (FinishReason.LENGTH, 10)


def test_a_finished_sequence_returns_its_blocks_at_once():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", fresh(1, 9), max_tokens=1))

    deltas = commit(scheduler, scheduler.schedule())

    assert deltas[0].finish_reason is FinishReason.LENGTH
    assert scheduler.pool.num_free == 64
    assert not scheduler.has_work


def test_a_stop_string_ends_a_sequence():
    scheduler = make_scheduler()
    sequence = scheduler.add(make_request("a", fresh(1, 9)))
    run_step(scheduler)

    scheduler.finish(sequence, FinishReason.STOP, "\n\n")

    assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, "\n\n")
    assert not scheduler.has_work


def test_a_finished_sequence_keeps_its_first_reason():
    scheduler = make_scheduler()
    sequence = scheduler.add(make_request("a", fresh(1, 9), max_tokens=1))
    run_step(scheduler)

    scheduler.finish(sequence, FinishReason.ABORT)

    assert sequence.finish_reason is FinishReason.LENGTH


def waiting(scheduler: Scheduler) -> None:
    """Nothing has been scheduled yet."""


def mid_prefill(scheduler: Scheduler) -> None:
    assert shape(run_step(scheduler)) == [("a", 0, 4, 0)]


def fork_pending(scheduler: Scheduler) -> None:
    mid_prefill(scheduler)
    scheduler.schedule()


def decoding(scheduler: Scheduler) -> None:
    for _ in range(3):
        run_step(scheduler)
    assert scheduler.num_running == 3


def preempted(scheduler: Scheduler) -> None:
    while not run_step(scheduler).preempted:
        pass


@pytest.mark.parametrize("reach", [waiting, mid_prefill, fork_pending, decoding, preempted])
def test_an_abort_ends_all_choices_in_every_state(reach: Callable[[Scheduler], None]):
    scheduler = make_scheduler(num_blocks=5, budget=4)
    scheduler.add(make_request("a", fresh(1, 6), n=3))
    reach(scheduler)
    num_sequences = scheduler.num_running + scheduler.num_waiting

    ended = scheduler.abort("a")

    assert len(ended) == num_sequences
    assert {sequence.finish_reason for sequence in ended} == {FinishReason.ABORT}
    assert scheduler.pool.num_free == 4
    assert not scheduler.has_work
    scheduler.check()


def test_tokens_of_a_sequence_aborted_during_its_step_are_ignored():
    scheduler = make_scheduler()
    a = scheduler.add(make_request("a", fresh(1, 6), n=2))
    b = scheduler.add(make_request("b", fresh(2, 6)))
    step = scheduler.schedule()
    scheduler.abort("a")

    deltas = scheduler.commit(step, [[5, 6], [7]])

    assert [(d.sequence, d.row) for d in deltas] == [(b, 2)]
    assert a.output == []
    scheduler.check()


def test_aborting_an_unknown_request_does_nothing():
    assert make_scheduler().abort("never seen") == []


def test_an_id_may_be_used_again_after_its_request_has_ended():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", fresh(1, 6)))
    step = scheduler.schedule()
    scheduler.abort("a")
    second = scheduler.add(make_request("a", fresh(1, 6)))

    assert commit(scheduler, step) == []
    assert second.output == []
