"""Several steps in flight, each with sequences of its own, as a pipeline's stages want them."""

from stories import commit, fresh, make_request, make_scheduler, shape

from paged_jax.host.request import Status


def test_each_step_in_flight_takes_its_share_and_nothing_that_is_awaited():
    scheduler = make_scheduler()
    for name in "abc":
        scheduler.add(make_request(name, fresh(ord(name), 6)))

    first = scheduler.schedule_beside([], 2)
    second = scheduler.schedule_beside([first], 2)
    third = scheduler.schedule_beside([first, second], 2)
    commit(scheduler, first)
    fourth = scheduler.schedule_beside([second], 2)

    assert shape(first) == [("a", 0, 6, 1), ("b", 0, 6, 1)]
    assert shape(second) == [("c", 0, 6, 1)]
    assert third.chunks == ()
    assert shape(fourth) == [("a", 6, 1, 1), ("b", 6, 1, 1)]


def test_the_chunks_of_one_prompt_follow_each_other():
    scheduler = make_scheduler(budget=8)
    scheduler.add(make_request("a", fresh(1, 20)))
    flying = []

    for _ in range(4):
        flying.append(scheduler.schedule_beside(flying, 4))

    assert [shape(step) for step in flying] == [
        [("a", 0, 8, 0)],
        [("a", 8, 8, 0)],
        [("a", 16, 4, 1)],
        [],
    ]


def test_a_sequence_preempted_in_flight_waits_for_its_step_and_draws_again():
    scheduler = make_scheduler(num_blocks=5, prefix_caching=False)
    a = scheduler.add(make_request("a", fresh(1, 8)))
    b = scheduler.add(make_request("b", fresh(2, 8)))
    first = scheduler.schedule_beside([], 2)
    second = scheduler.schedule_beside([first], 2)
    commit(scheduler, first)

    third = scheduler.schedule_beside([second], 2)  # needs a block: b has the last ones
    scheduler.abort("a")
    fourth = scheduler.schedule_beside([second, third], 2)
    deltas = commit(scheduler, second)
    fifth = scheduler.schedule_beside([third], 2)

    assert third.preempted == (b,) and a.status is Status.FINISHED
    assert (fourth.chunks, deltas, b.output) == ((), [], [])
    assert shape(fifth) == [("b", 0, 8, 1)]
