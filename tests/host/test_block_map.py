"""The map of the KV pool that people look at."""

from stories import fresh, make_request, make_scheduler, run_step, run_to_end

from paged_jax.host.block_map import block_map, joined


def test_map_tells_holders_owners_and_what_is_cached():
    scheduler = make_scheduler(num_blocks=9)
    scheduler.add(make_request("a", fresh(1, 9)))
    run_step(scheduler)
    scheduler.add(make_request("b", fresh(1, 9)))
    run_step(scheduler)

    told = block_map(scheduler)

    assert told.num_blocks == 8 and told.block_size == 4
    assert told.refs == (2, 2, 1, 1, 0, 0, 0, 0)
    assert told.owners == (0, 0, 0, 1, -1, -1, -1, -1)
    assert told.cached == (True, True, False, False, False, False, False, False)
    first, second = told.sequences
    assert (first.request_id, first.num_prompt, first.num_output, first.num_blocks) == (
        "a",
        9,
        2,
        3,
    )
    assert (second.num_cached, second.status, second.choice) == (8, "running", 0)


def test_map_counts_evicted_blocks_and_shows_those_that_wait():
    scheduler = make_scheduler(num_blocks=5, max_seqs=1)
    scheduler.add(make_request("a", fresh(1, 8), max_tokens=1))
    run_to_end(scheduler)
    assert block_map(scheduler).cached[:2] == (True, True)
    for name, start in (("b", 2), ("c", 3)):
        scheduler.add(make_request(name, fresh(start, 15)))
    run_step(scheduler)

    told = block_map(scheduler)

    assert told.num_evicted == 2
    assert [view.status for view in told.sequences] == ["running", "waiting"]
    assert told.sequences[1].num_blocks == 0


def test_maps_of_several_pools_are_told_as_one():
    scheduler = make_scheduler(num_blocks=4)
    scheduler.add(make_request("a", fresh(1, 5)))
    run_step(scheduler)
    one = block_map(scheduler)

    both = joined([one, one])

    assert joined([one]) == one
    assert (both.num_blocks, both.refs) == (6, (1, 1, 0, 1, 1, 0))
    assert both.owners == (0, 0, -1, 1, 1, -1) and len(both.sequences) == 2
