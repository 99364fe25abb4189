"""Who is computed when, and who is refused. Random stories are in test_scheduler_machine.py."""

import pytest
from stories import (
    first_scheduled,
    fresh,
    make_request,
    make_scheduler,
    run_step,
    run_to_end,
    shape,
)

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.limits import check_fits
from paged_jax.host.request import Request
from paged_jax.host.scheduler import Scheduler


def test_a_long_prompt_is_computed_in_chunks_beside_a_decode():
    scheduler = make_scheduler(budget=8)
    scheduler.add(make_request("a", fresh(1, 4)))
    scheduler.add(make_request("b", fresh(2, 15)))

    steps = [run_step(scheduler) for _ in range(4)]

    assert [shape(step) for step in steps] == [
        [("a", 0, 4, 1), ("b", 0, 4, 0)],
        [("a", 4, 1, 1), ("b", 4, 7, 0)],
        [("a", 5, 1, 1), ("b", 11, 4, 1)],
        [("a", 6, 1, 1), ("b", 15, 1, 1)],
    ]


def test_blocks_are_taken_as_tokens_are_computed():
    scheduler = make_scheduler(budget=6)
    sequence = scheduler.add(make_request("a", fresh(1, 11)))

    tables = []
    for _ in range(4):
        run_step(scheduler)
        tables.append(list(sequence.block_table))

    assert tables == [[1, 2], [1, 2, 3], [1, 2, 3], [1, 2, 3, 4]]


def test_no_more_sequences_run_than_allowed():
    scheduler = make_scheduler(max_seqs=2)
    for i in range(3):
        scheduler.add(make_request(str(i), fresh(i, 4), max_tokens=2))

    assert [name for name, *_ in shape(run_step(scheduler))] == ["0", "1"]
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)
    run_to_end(scheduler)


def test_a_request_of_n_choices_takes_n_seats():
    scheduler = make_scheduler(max_seqs=4)
    scheduler.add(make_request("a", fresh(1, 4), max_tokens=1, n=3))
    scheduler.add(make_request("b", fresh(2, 4), max_tokens=1, n=2))
    scheduler.add(make_request("c", fresh(3, 4), max_tokens=1))

    steps = run_to_end(scheduler)

    assert [shape(step) for step in steps] == [
        [("a", 0, 4, 3)],
        [("b", 0, 4, 2), ("c", 0, 4, 1)],
    ]


def test_a_request_that_finds_no_room_holds_back_those_behind_it():
    scheduler = make_scheduler(num_blocks=6)
    scheduler.add(make_request("a", fresh(1, 8), max_tokens=2))
    scheduler.add(make_request("big", fresh(2, 16), max_tokens=2))
    scheduler.add(make_request("small", fresh(3, 4), max_tokens=2))

    steps = run_to_end(scheduler)

    assert [name for name, *_ in shape(steps[0])] == ["a"]
    assert first_scheduled(steps) == ["a", "big", "small"]


def test_a_prompt_is_admitted_only_if_all_of_it_finds_room():
    scheduler = make_scheduler(num_blocks=6, budget=4)
    scheduler.add(make_request("a", fresh(1, 4), max_tokens=2))
    run_step(scheduler)
    scheduler.add(make_request("b", fresh(2, 16), max_tokens=2))

    assert shape(run_step(scheduler)) == [("a", 4, 1, 1)]
    assert shape(run_step(scheduler)) == [("b", 0, 4, 0)]


def test_requests_are_served_in_order_of_priority_then_arrival():
    scheduler = make_scheduler(max_seqs=1, policy="priority")
    for name, priority, arrival_s in [("c", 1, 0), ("b", 0, 2), ("a", 0, 1), ("d", 1, 0)]:
        request = make_request(
            name, fresh(1, 4), max_tokens=1, priority=priority, arrival_s=arrival_s
        )
        scheduler.add(request)

    assert first_scheduled(run_to_end(scheduler)) == ["a", "b", "c", "d"]


def test_fcfs_ignores_priority():
    scheduler = make_scheduler(max_seqs=1)
    for name, priority in [("a", 3), ("b", 1)]:
        scheduler.add(make_request(name, fresh(1, 4), max_tokens=1, priority=priority))

    assert first_scheduled(run_to_end(scheduler)) == ["a", "b"]


def refusal(scheduler: Scheduler, request: Request) -> tuple[str, str | None]:
    with pytest.raises(InvalidRequest) as caught:
        scheduler.add(request)
    assert scheduler.num_waiting == len(scheduler.sequences)
    return str(caught.value), caught.value.param


def test_an_id_in_use_is_refused():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", fresh(1, 6)))

    message, param = refusal(scheduler, make_request("a", fresh(2, 6)))

    assert (message, param) == ("request id 'a' is in use", "request_id")


def test_an_empty_prompt_is_refused():
    message, param = refusal(make_scheduler(), make_request("a", []))

    assert (message, param) == ("prompt must have at least one token", "prompt")


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused():
    message, param = refusal(make_scheduler(max_model_len=16), make_request("a", fresh(1, 16)))

    assert param == "prompt"
    assert "16 tokens" in message and "at most 15" in message


def test_a_prompt_that_never_fits_the_pool_is_refused():
    scheduler = make_scheduler(num_blocks=4)
    check_fits(11, 1, scheduler.config, scheduler.cache)

    message, param = refusal(scheduler, make_request("a", fresh(1, 12)))

    assert param == "prompt"
    assert "needs 4 KV blocks, but there are 3" in message


def test_more_choices_than_may_run_at_once_are_refused():
    message, param = refusal(make_scheduler(max_seqs=2), make_request("a", fresh(1, 4), n=3))

    assert param == "n"
    assert "n (3)" in message and "2 sequences" in message
