"""Requests that begin in the middle of another one, with exact block ids."""

import pytest
from stories import commit, fresh, make_request, make_scheduler, run_step, run_to_end, shape

from paged_jax.host.request import Sequence, Status
from paged_jax.host.scheduler import Scheduler


def start(prompt_len: int, num_steps: int = 1, **options) -> tuple[Scheduler, Sequence]:
    """A scheduler on which request "a" has run for some steps."""
    scheduler = make_scheduler(**options)
    parent = scheduler.add(make_request("a", fresh(1, prompt_len)))
    for _ in range(num_steps):
        run_step(scheduler)
    return scheduler, parent


def fork_at(scheduler: Scheduler, parent: Sequence, at: int, **changes) -> Sequence:
    return scheduler.fork(make_request("b", parent.tokens(0, at), **changes), parent)


def test_a_fork_at_the_end_shares_all_blocks_and_the_first_to_write_copies():
    scheduler, parent = start(6, num_steps=2)
    child = fork_at(scheduler, parent, 8)
    assert (parent.block_table, child.block_table, child.num_cached) == ([1, 2], [1, 2], 7)

    step = run_step(scheduler)

    assert shape(step) == [("a", 7, 1, 1), ("b", 7, 1, 1)]
    assert step.copies == ((2, 3),)
    assert (parent.block_table, child.block_table) == ([1, 3], [1, 2])
    run_to_end(scheduler)


def test_a_fork_in_the_middle_copies_the_block_it_falls_into():
    scheduler, parent = start(14)
    child = fork_at(scheduler, parent, 7)

    step = run_step(scheduler)

    assert shape(step) == [("a", 14, 1, 1), ("b", 6, 1, 1)]
    assert step.copies == ((2, 5),)
    assert (parent.block_table, child.block_table) == ([1, 2, 3, 4], [1, 5])


def test_a_fork_does_not_write_into_a_cached_block_its_parent_has_left():
    scheduler, parent = start(14)
    child = fork_at(scheduler, parent, 7)
    scheduler.abort("a")

    step = run_step(scheduler)

    assert step.copies == ((2, child.block_table[1]),) and child.block_table[1] != 2
    again = scheduler.add(make_request("c", fresh(1, 14)))
    run_step(scheduler)
    assert (again.num_cached, again.block_table[:3]) == (12, [1, 2, 3])


@pytest.mark.parametrize("at", [1, 6])
def test_a_fork_between_steps_of_a_chunked_prompt_shares_what_is_computed(at):
    scheduler, parent = start(20, budget=5)

    child = fork_at(scheduler, parent, at)

    assert child.num_computed == at - 1 and (child.status is Status.RUNNING) is (at > 1)
    run_to_end(scheduler)


def test_without_a_seat_a_fork_waits_and_finds_its_blocks_in_the_cache():
    scheduler, parent = start(10, max_seqs=1)

    child = fork_at(scheduler, parent, 10)

    assert child.status is Status.WAITING and not child.block_table
    scheduler.abort("a")
    run_step(scheduler)
    assert child.num_cached == 8


@pytest.mark.parametrize("changes", [{"salt": "other"}, {"prompt_logprobs": 0}])
def test_what_may_not_be_shared_is_computed(changes):
    scheduler, parent = start(10)

    child = fork_at(scheduler, parent, 10, **changes)
    step = run_step(scheduler)

    assert shape(step) == [("a", 10, 1, 1), ("b", 0, 10, 1)]
    assert not set(child.block_table) & set(parent.block_table)


def test_a_fork_into_choices_shares_once_more():
    scheduler, parent = start(6)
    fork_at(scheduler, parent, 6, n=3)

    deltas = commit(scheduler, scheduler.schedule())

    tables = [delta.sequence.block_table for delta in deltas[1:]]
    assert tables == [tables[0]] * 3 and tables[0][0] == parent.block_table[0]
    run_to_end(scheduler)
