"""Steps scheduled while what the step before them draws is still pending."""

from stories import EOS, commit, fresh, make_request, make_scheduler, run_step, shape

from paged_jax.host.request import FinishReason, Status


def test_a_pending_token_is_computed_before_it_is_known():
    scheduler = make_scheduler()
    a = scheduler.add(make_request("a", fresh(1, 6)))
    first = scheduler.schedule()

    second = scheduler.schedule(ahead_of=first)
    commit(scheduler, first, 7)
    third = scheduler.schedule(ahead_of=second)
    commit(scheduler, second, 8)

    assert shape(second) == [("a", 6, 1, 1)] and shape(third) == [("a", 7, 1, 1)]
    assert a.output == [7, 8] and a.num_computed == 8


def test_a_pending_token_that_is_the_last_by_length_is_not_computed():
    scheduler = make_scheduler(max_model_len=8)
    scheduler.add(make_request("a", fresh(1, 6), max_tokens=1))
    scheduler.add(make_request("b", fresh(2, 7)))
    first = scheduler.schedule()

    assert scheduler.schedule(ahead_of=first).chunks == ()
    deltas = commit(scheduler, first)

    assert [delta.finish_reason for delta in deltas] == [FinishReason.LENGTH] * 2
    assert not scheduler.has_work


def test_the_token_after_an_end_is_dropped_and_its_block_comes_back():
    scheduler = make_scheduler()
    a = scheduler.add(make_request("a", fresh(1, 8)))
    b = scheduler.add(make_request("b", fresh(2, 8)))
    first = scheduler.schedule()
    second = scheduler.schedule(ahead_of=first)
    scheduler.commit(first, [[EOS], [7]])

    deltas = commit(scheduler, second, 8)

    assert (a.output, a.finish_reason, a.block_table) == ([EOS], FinishReason.STOP, [])
    assert [delta.sequence for delta in deltas] == [b] and b.output == [7, 8]


def test_choices_wait_for_their_first_tokens():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", fresh(1, 6), n=2))
    scheduler.add(make_request("b", fresh(2, 6)))
    first = scheduler.schedule()

    second = scheduler.schedule(ahead_of=first)
    commit(scheduler, first)
    third = scheduler.schedule(ahead_of=second)

    assert shape(second) == [("b", 6, 1, 1)]
    assert shape(third) == [("a", 6, 1, 1), ("a", 6, 1, 1), ("b", 7, 1, 1)]


def test_a_preempted_sequence_draws_its_pending_token_again():
    scheduler = make_scheduler(num_blocks=5)
    scheduler.add(make_request("a", fresh(1, 7)))
    b = scheduler.add(make_request("b", fresh(2, 7)))
    first = scheduler.schedule()
    second = scheduler.schedule(ahead_of=first)
    commit(scheduler, first)

    third = scheduler.schedule(ahead_of=second)
    deltas = commit(scheduler, second, 8)

    assert third.preempted == (b,) and b.status is Status.WAITING
    assert [delta.sequence.request.id for delta in deltas] == ["a"] and b.output == [7]
    assert b.num_tokens == 8 and b.num_missing == 8


def test_a_block_is_shared_once_its_last_token_is_known():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", fresh(1, 7)))
    first = scheduler.schedule()
    second = scheduler.schedule(ahead_of=first)
    known = [*fresh(1, 7), 7, 5]

    early = scheduler.add(make_request("early", known))
    commit(scheduler, first, 7)
    run_step(scheduler)

    assert shape(second) == [("a", 7, 1, 1)]
    assert early.num_cached == 8
