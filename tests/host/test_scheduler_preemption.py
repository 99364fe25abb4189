"""What happens when blocks run out, with exact block ids."""

from stories import (
    commit,
    first_scheduled,
    fresh,
    make_request,
    make_scheduler,
    run_step,
    run_to_end,
    shape,
)

from paged_jax.host.request import FinishReason, Request, Status
from paged_jax.host.scheduler import Scheduler


def test_the_youngest_is_preempted_and_comes_back_first():
    scheduler = make_scheduler(num_blocks=5, prefix_caching=False)
    a = scheduler.add(make_request("a", fresh(1, 8), max_tokens=8))
    b = scheduler.add(make_request("b", fresh(2, 8), max_tokens=2))
    run_step(scheduler)
    scheduler.add(make_request("c", fresh(3, 4), max_tokens=1))

    step = run_step(scheduler)

    assert (shape(step), step.preempted) == ([("a", 8, 1, 1)], (b,))
    assert (b.status, b.num_computed, b.output, b.num_preemptions) == (Status.WAITING, 0, [7], 1)
    assert (a.block_table, b.block_table) == ([1, 2, 3], [])
    assert scheduler.num_preemptions == 1
    assert first_scheduled(run_to_end(scheduler)) == ["a", "b", "c"]


def test_a_preempted_sequence_computes_prompt_and_output_again():
    scheduler = make_scheduler(num_blocks=5, prefix_caching=False)
    scheduler.add(make_request("a", fresh(1, 8), max_tokens=2))
    b = scheduler.add(make_request("b", fresh(2, 8), max_tokens=4))

    steps = run_to_end(scheduler)

    assert ("b", 0, 9, 1) in [chunk for step in steps for chunk in shape(step)]
    assert b.output == [7, 7, 7, 7]


def test_a_preempted_sequence_finds_its_own_blocks_in_the_cache():
    scheduler = make_scheduler(num_blocks=6)
    scheduler.add(make_request("a", fresh(1, 12), max_tokens=2))
    b = scheduler.add(make_request("b", fresh(2, 8), max_tokens=4))

    steps = run_to_end(scheduler)

    assert scheduler.num_preemptions == 1
    assert ("b", 4, 5, 1) in shape(steps[2])
    assert (b.num_cached, scheduler.prefix.queries, scheduler.prefix.hits) == (0, 20, 0)


def make_rivals(num_blocks: int, budget: int, low: Request, high: Request) -> Scheduler:
    """Both run; `low` was admitted first, so that it is planned first and `high` preempts it then.

    The next step is the first after the prompt of `low`.
    """
    scheduler = make_scheduler(num_blocks=num_blocks, budget=budget, policy="priority")
    scheduler.add(low)
    run_step(scheduler)
    scheduler.add(high)
    step = run_step(scheduler)
    assert [name for name, *_ in shape(step)] == ["low", "high"]
    return scheduler


def test_a_victim_already_in_the_step_gives_back_its_tokens_and_its_copy():
    low = make_request("low", fresh(1, 22), priority=1, n=3)
    high = make_request("high", fresh(2, 12))
    scheduler = make_rivals(10, 12, low, high)

    step = scheduler.schedule()

    assert shape(step) == [("low", 22, 1, 1), ("high", 2, 9, 0)]
    assert [s.index for s in step.preempted] == [2, 1]
    assert (step.copies, scheduler.num_copies) == (((6, 8),), 1)
    assert step.chunks[1].sequence.block_table == [7, 9, 6]
    commit(scheduler, step)
    run_to_end(scheduler)


def test_the_tokens_of_a_dropped_chunk_go_to_those_behind_it():
    scheduler = make_scheduler(num_blocks=8, budget=3, policy="priority")
    low = scheduler.add(make_request("low", fresh(1, 12), priority=1))
    for _ in range(4):
        run_step(scheduler)
    scheduler.add(make_request("high", fresh(2, 2)))
    scheduler.add(make_request("next", fresh(3, 1), n=2))
    before = [shape(run_step(scheduler)) for _ in range(3)]
    assert before[-1] == [("low", 14, 1, 1), ("high", 3, 1, 1), ("next", 1, 1, 1)]

    step = run_step(scheduler)

    assert step.preempted == (low,)
    assert shape(step) == [("high", 4, 1, 1), ("next", 2, 1, 1), ("next", 1, 1, 1)]


def test_a_copy_source_may_be_freed_and_written_in_the_same_step():
    low = make_request("low", fresh(1, 10), priority=1, n=2)
    scheduler = make_rivals(6, 6, low, make_request("high", fresh(2, 8)))

    step = run_step(scheduler)

    assert step.copies == ((3, 5),)
    assert step.chunks[1].sequence.block_table == [4, 3]


def test_of_two_that_preempt_each_other_the_older_one_wins():
    scheduler = make_scheduler(num_blocks=7)
    a = scheduler.add(make_request("a", fresh(1, 8), max_tokens=16))
    b = scheduler.add(make_request("b", fresh(2, 8), max_tokens=16))

    run_to_end(scheduler)

    assert a.num_preemptions == 0
    assert b.num_preemptions > 0
    assert len(a.output) == len(b.output) == 16


def test_a_sequence_that_outgrows_the_pool_ends_by_length():
    scheduler = make_scheduler(num_blocks=4)
    a = scheduler.add(make_request("a", fresh(1, 8)))
    b = scheduler.add(make_request("b", fresh(2, 4), max_tokens=3))

    run_to_end(scheduler)

    assert (a.finish_reason, a.num_tokens) == (FinishReason.LENGTH, 13)
    assert (b.finish_reason, len(b.output)) == (FinishReason.LENGTH, 3)


def test_choices_that_do_not_fit_together_all_end():
    scheduler = make_scheduler(num_blocks=6)
    scheduler.add(make_request("a", fresh(1, 10), max_tokens=9, n=4))

    steps = run_to_end(scheduler)

    assert scheduler.num_preemptions > 0
    drawn = sum(step.num_samples for step in steps)
    assert drawn == 36
