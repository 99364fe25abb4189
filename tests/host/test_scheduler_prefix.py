"""What the prefix cache saves, with exact positions."""

from collections import Counter

import pytest
from stories import fresh, make_request, make_scheduler, run_step, run_to_end, shape

from paged_jax.host.trace import PoolUsage


@pytest.mark.parametrize(
    ("prompt_len", "num_cached"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (15, 12)]
)
def test_a_repeated_prompt_is_cached_but_for_its_last_token(prompt_len, num_cached):
    scheduler = make_scheduler()
    scheduler.add(make_request("a", fresh(1, prompt_len), max_tokens=1))
    run_to_end(scheduler)
    again = scheduler.add(make_request("b", fresh(1, prompt_len), max_tokens=1))

    [step] = run_to_end(scheduler)

    assert shape(step) == [("b", num_cached, prompt_len - num_cached, 1)]
    assert again.num_cached == num_cached
    assert (scheduler.prefix.queries, scheduler.prefix.hits) == (2 * prompt_len, num_cached)


def test_generated_tokens_are_cached():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", fresh(1, 6), max_tokens=4))
    run_to_end(scheduler)

    turn = scheduler.add(make_request("b", [*fresh(1, 6), 7, 7, 7, 7, 5]))
    run_step(scheduler)

    assert turn.num_cached == 8


def test_the_last_generated_token_is_not_cached_since_it_was_never_computed():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", fresh(1, 6), max_tokens=2))
    run_to_end(scheduler)

    turn = scheduler.add(make_request("b", [*fresh(1, 6), 7, 7, 5]))
    run_step(scheduler)

    assert turn.num_cached == 4


def test_a_block_is_shared_in_the_very_step_that_fills_it():
    scheduler = make_scheduler()
    a = scheduler.add(make_request("a", [*fresh(1, 8), 5]))
    b = scheduler.add(make_request("b", [*fresh(1, 8), 6]))

    step = run_step(scheduler)

    assert shape(step) == [("a", 0, 9, 1), ("b", 8, 1, 1)]
    assert (a.block_table, b.block_table) == ([1, 2, 3], [1, 2, 4])
    assert scheduler.usage() == PoolUsage(num_blocks=64, num_used=4, num_tokens=10)


@pytest.mark.parametrize("num_decodes", [0, 3])
@pytest.mark.parametrize("prefix_len", [1024, 1016])
def test_a_cold_prefix_of_many_requests_is_computed_once(num_decodes, prefix_len):
    scheduler = make_scheduler(num_blocks=2000, block_size=16, budget=512, max_seqs=64,
                               max_model_len=2048)  # fmt: skip
    for i in range(num_decodes):
        scheduler.add(make_request(f"decode {i}", fresh(50 + i, 3), max_tokens=200))
    if num_decodes:
        run_step(scheduler)
    for i in range(32):
        scheduler.add(make_request(str(i), [*range(prefix_len), *fresh(100 + i, 30)], max_tokens=9))

    chunks = [chunk for step in run_to_end(scheduler) for chunk in shape(step)]

    num_shared = prefix_len // 16 * 16
    computed = Counter(
        position
        for name, start, length, _ in chunks
        if name.isdigit()
        for position in range(start, min(start + length, num_shared))
    )
    assert computed == Counter(range(num_shared))
    assert scheduler.prefix.hits == 31 * num_shared


def test_different_salts_share_nothing():
    scheduler = make_scheduler()
    for name, salt in [("a", None), ("b", "x"), ("c", "y"), ("d", "x")]:
        scheduler.add(make_request(name, fresh(1, 9), salt=salt))

    starts = [start for _, start, _, _ in shape(run_step(scheduler))]

    assert starts == [0, 0, 0, 8]


def test_prompt_logprobs_do_not_read_the_cache_but_fill_it():
    scheduler = make_scheduler()
    scored = scheduler.add(make_request("a", fresh(1, 9), prompt_logprobs=1))
    again = scheduler.add(make_request("b", fresh(1, 9), prompt_logprobs=1))
    plain = scheduler.add(make_request("c", fresh(1, 9)))

    run_step(scheduler)

    assert [s.num_cached for s in (scored, again, plain)] == [0, 0, 8]
    assert (scheduler.prefix.queries, scheduler.prefix.hits) == (9, 8)


def test_without_prefix_caching_nothing_is_shared_or_counted():
    scheduler = make_scheduler(prefix_caching=False)
    for name in "ab":
        scheduler.add(make_request(name, fresh(1, 9)))

    step = run_step(scheduler)

    assert shape(step) == [("a", 0, 9, 1), ("b", 0, 9, 1)]
    assert scheduler.prefix.queries == 0


def test_cached_blocks_in_the_free_queue_count_as_needed():
    scheduler = make_scheduler(num_blocks=5)
    scheduler.add(make_request("a", fresh(1, 9), max_tokens=1))
    run_to_end(scheduler)
    holder = scheduler.add(make_request("b", fresh(2, 7), max_tokens=2))
    scheduler.add(make_request("c", fresh(1, 9), max_tokens=1))

    step = run_step(scheduler)

    assert shape(step) == [("b", 0, 7, 1)]
    assert holder.block_table == [3, 4]
