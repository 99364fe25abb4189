"""Sequences saved from one scheduler and resumed on another, with exact blocks."""

from dataclasses import replace

import pytest
from stories import fresh, make_request, make_scheduler, run_step, run_to_end

from paged_jax.host.request import Sequence, Status
from paged_jax.host.saved import (
    SavedSequence,
    SnapshotError,
    check_sequences,
    resume_sequences,
    save_sequences,
)
from paged_jax.host.scheduler import Scheduler


def begin() -> Scheduler:
    """Two prompts of 9 tokens, the second for two choices, of 3 tokens of answer each."""
    scheduler = make_scheduler()
    scheduler.add(make_request("a", fresh(1, 9), max_tokens=12))
    scheduler.add(make_request("b", fresh(2, 9), max_tokens=12, n=2))
    for _ in range(3):
        run_step(scheduler)
    return scheduler


def move(old: Scheduler, **options) -> tuple[Scheduler, list[Sequence], list[tuple[int, int]]]:
    saved, _ = save_sequences(old)
    requests = {sequence.request.id: sequence.request for sequence in old.sequences}
    new = make_scheduler(**options)
    sequences, writes = resume_sequences(new, saved, requests)
    new.check()
    return new, sequences, writes


@pytest.mark.parametrize("block_size", [1, 2, 4, 8])
def test_what_was_shared_is_shared_with_blocks_of_any_size(block_size: int):
    new, (a, b, c), writes = move(begin(), num_blocks=200, block_size=block_size)
    num_shared = 8 // block_size
    assert b.block_table[:num_shared] == c.block_table[:num_shared]
    assert len({slot for _, slot in writes}) == len(writes)
    assert [each.num_computed for each in (a, b, c)] == [11, 11, 11]
    run_to_end(new)
    assert [len(each.output) for each in (a, b, c)] == [12, 12, 12]


def test_what_finds_no_blocks_waits_and_is_computed_again():
    new, (a, b, c), _ = move(begin(), num_blocks=7)
    statuses = [each.status for each in (a, b, c)]
    assert statuses == [Status.RUNNING, Status.RUNNING, Status.WAITING]
    run_to_end(new)
    assert [len(each.output) for each in (a, b, c)] == [12, 12, 12]


def test_what_finds_no_seat_waits():
    new, (a, _, c), _ = move(begin(), max_seqs=2)
    assert (a.status, c.status) == (Status.RUNNING, Status.WAITING)
    run_to_end(new)


def test_resumed_blocks_are_found_by_new_requests():
    new, _, _ = move(begin(), block_size=2)
    late = new.add(make_request("late", [*fresh(1, 9), 5]))
    run_step(new)
    assert late.num_cached == 8


@pytest.mark.parametrize(
    "change",
    [
        {"request_id": "other"},
        {"index": 2},
        {"index": 1},
        {"runs": ((30, 4),)},
        {"runs": ((-1, 4),)},
        {"runs": ((0, 12),)},
    ],
)
def test_sequences_that_contradict_themselves_are_refused(change: dict):
    old = begin()
    saved, slots = save_sequences(old)
    requests = {sequence.request.id: sequence.request for sequence in old.sequences}
    check_sequences(saved, requests, len(slots))

    broken: list[SavedSequence] = [replace(saved[0], **change), *saved[1:]]
    with pytest.raises(SnapshotError, match="take it again"):
        check_sequences(broken, requests, len(slots))
