"""Prompts that leave a cached text inside a block, with exact positions and copies."""

import pytest
from stories import fresh, make_request, make_scheduler, run_step, run_to_end, shape

from paged_jax.host.partial import NUM_COMPARED, PartialIndex
from paged_jax.host.scheduler import Scheduler

TEXT = list(fresh(1, 32))


def make_warm(prompt=TEXT, max_tokens: int = 1, **options) -> Scheduler:
    """A scheduler that has answered one prompt; blocks of 8 are copied for 2 tokens or more."""
    options = {"block_size": 8, "partial_reuse": True} | options
    scheduler = make_scheduler(**options)
    scheduler.add(make_request("a", prompt, max_tokens=max_tokens))
    run_to_end(scheduler)
    return scheduler


@pytest.mark.parametrize(
    ("num_equal", "num_cached"), [(1, 0), (2, 2), (7, 7), (8, 8), (9, 8), (13, 13), (24, 24)]
)
def test_equal_tokens_of_the_next_block_are_copied(num_equal: int, num_cached: int):
    scheduler = make_warm()
    b = scheduler.add(make_request("b", [*TEXT[:num_equal], *fresh(2, 20)]))

    step = run_step(scheduler)

    assert shape(step) == [("b", num_cached, num_equal + 20 - num_cached, 1)]
    source = 1 + num_cached // 8
    copies = ((source, b.block_table[num_cached // 8]),) if num_cached % 8 else ()
    assert step.copies == copies and b.num_cached == num_cached
    assert scheduler.prefix.hits == num_cached
    run_to_end(scheduler)


def test_of_an_equal_prompt_only_the_last_token_is_computed():
    scheduler = make_warm()
    scheduler.add(make_request("b", TEXT, max_tokens=1))
    assert shape(run_step(scheduler)) == [("b", 31, 1, 1)]


def test_an_ended_answer_leaves_its_last_block_too():
    scheduler = make_warm(TEXT[:10], max_tokens=5)
    scheduler.add(make_request("b", [*TEXT[:10], 7, 7, 7, 7, 7, *fresh(2, 9)]))

    step = run_step(scheduler)

    assert shape(step) == [("b", 14, 10, 1)]  # the last token drawn was never computed


def test_the_block_that_agrees_longest_is_copied():
    scheduler = make_warm()
    scheduler.add(make_request("b", [*TEXT[:21], *fresh(2, 19)], max_tokens=1))
    run_to_end(scheduler)
    scheduler.add(make_request("c", [*TEXT[:23], *fresh(3, 9)], max_tokens=1))
    scheduler.add(make_request("d", [*TEXT[:21], *fresh(2, 2), *fresh(4, 9)], max_tokens=1))
    assert [start for _, start, _, _ in shape(run_step(scheduler))] == [23, 23]


def test_a_block_of_the_same_step_is_not_copied_since_it_is_not_written_yet():
    scheduler = make_scheduler(block_size=8, partial_reuse=True)
    for name, tail in (("a", 2), ("b", 3)):
        scheduler.add(make_request(name, [*TEXT[:13], *fresh(tail, 9)]))
    assert [start for _, start, _, _ in shape(run_step(scheduler))] == [0, 8]

    scheduler.add(make_request("c", [*TEXT[:13], *fresh(4, 9)]))
    assert shape(run_step(scheduler))[-1][:2] == ("c", 13)


def test_other_salts_and_scored_prompts_copy_nothing():
    scheduler = make_warm()
    scheduler.add(make_request("b", TEXT[:5], salt="other"))
    scheduler.add(make_request("c", TEXT[:5], prompt_logprobs=0))
    assert [start for _, start, _, _ in shape(run_step(scheduler))] == [0, 0]


def test_a_source_that_has_to_make_room_is_copied_before_it_is_overwritten():
    scheduler = make_warm(TEXT[:31], num_blocks=5)
    b = scheduler.add(make_request("b", [*TEXT[:13], *fresh(2, 18)], max_tokens=1))

    step = scheduler.schedule()

    assert step.copies == ((2, 4),) and b.block_table == [1, 4, 3, 2]


def test_a_look_up_compares_a_bounded_number_of_blocks():
    index = PartialIndex()
    for number in range(NUM_COMPARED + 1):
        index.add(bytes([number]), b"", (5, number, number))
    assert index.longest(b"", (5, 1, 1)) == (bytes([1]), 3)
    assert index.longest(b"", (5, 0, 0)) == (bytes([NUM_COMPARED]), 1)
    assert index.longest(b"", (6,)) is index.longest(b"x", (5,)) is None
