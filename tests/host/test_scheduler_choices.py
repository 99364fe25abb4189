"""n choices of a prompt: sharing and copy-on-write, with exact block ids."""

from stories import EOS, commit, fresh, make_request, make_scheduler, run_step, run_to_end

from paged_jax.host.request import FinishReason, Status
from paged_jax.host.trace import PoolUsage


def test_choices_share_the_prompt_and_copy_its_partial_block():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", fresh(1, 6), n=3))
    deltas = commit(scheduler, scheduler.schedule())
    choices = [delta.sequence for delta in deltas]
    assert [s.block_table for s in choices] == [[1, 2]] * 3

    step = run_step(scheduler)

    assert step.copies == ((2, 3), (2, 4))
    assert [s.block_table for s in choices] == [[1, 3], [1, 4], [1, 2]]
    assert (scheduler.num_copies, run_step(scheduler).copies) == (2, ())


def test_choices_of_a_prompt_that_fills_its_blocks_copy_nothing():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", fresh(1, 8), n=3))
    deltas = commit(scheduler, scheduler.schedule())

    step = run_step(scheduler)

    assert step.copies == ()
    assert [d.sequence.block_table for d in deltas] == [[1, 2, 3], [1, 2, 4], [1, 2, 5]]


def test_eight_choices_hold_a_thousand_tokens_once():
    scheduler = make_scheduler(num_blocks=100, block_size=16, budget=1000, max_model_len=2000)
    scheduler.add(make_request("a", range(1000), n=8))

    run_step(scheduler)
    assert scheduler.usage() == PoolUsage(99, num_used=63, num_tokens=1000)
    step = run_step(scheduler)

    assert len(step.copies) == 7
    assert scheduler.usage() == PoolUsage(99, num_used=62 + 8, num_tokens=992 + 8 * 9)


def test_each_choice_gets_its_own_first_token_and_index():
    scheduler = make_scheduler()
    scheduler.add(make_request("z", fresh(9, 4)))
    scheduler.add(make_request("a", fresh(1, 6), n=3))
    step = scheduler.schedule()

    deltas = scheduler.commit(step, [[9], [5, 6, 7]])

    told = [(d.sequence.request.id, d.sequence.index, d.token, d.row) for d in deltas]
    assert told == [("z", 0, 9, 0), ("a", 0, 5, 1), ("a", 1, 6, 2), ("a", 2, 7, 3)]
    assert [d.sequence.seed for d in deltas[1:]] == [0, 1, 2]
    assert not any(delta.sequence.fork_pending for delta in deltas)


def test_the_prompt_of_n_choices_is_looked_up_once():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", fresh(1, 9), max_tokens=1))
    run_to_end(scheduler)
    scheduler.add(make_request("b", fresh(1, 9), n=4))

    deltas = commit(scheduler, scheduler.schedule())

    assert [delta.sequence.num_cached for delta in deltas] == [8] * 4
    assert (scheduler.prefix.queries, scheduler.prefix.hits) == (18, 8)


def test_the_last_holder_writes_in_place_when_its_siblings_have_ended():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", fresh(1, 6), n=2))
    step = scheduler.schedule()
    deltas = scheduler.commit(step, [[EOS, 7]])
    assert deltas[0].finish_reason is FinishReason.STOP

    assert run_step(scheduler).copies == ()
    assert deltas[1].sequence.block_table == [1, 2]


def test_a_preempted_choice_waits_alone():
    scheduler = make_scheduler(num_blocks=5)
    scheduler.add(make_request("a", fresh(1, 6), max_tokens=8, n=3))
    deltas = commit(scheduler, scheduler.schedule())
    one, two, three = [delta.sequence for delta in deltas]

    steps = [run_step(scheduler) for _ in range(3)]

    assert steps[0].copies == ((2, 3), (2, 4))
    assert steps[2].preempted == (three, two)
    assert (one.status, two.status, three.status) == (
        Status.RUNNING,
        Status.WAITING,
        Status.WAITING,
    )
    run_to_end(scheduler)
    assert [len(s.output) for s in (one, two, three)] == [8, 8, 8]
