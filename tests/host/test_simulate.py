"""The simulator: the real scheduler on a logical clock, against times worked out by hand."""

from dataclasses import replace

import pytest
from stories import fresh

from paged_jax.host.arrivals import Load, make_request
from paged_jax.host.request import Request
from paged_jax.host.scheduler import Scheduler
from paged_jax.host.simulate import ModelledTiming, Simulation
from paged_jax.host.step_cost import COSTS, StepCost
from paged_jax.host.summary import summarise
from paged_jax.host.system import System

SECOND_A_STEP = StepCost(1.0, 0.0, 0.0, 0.0)
SYSTEM = System(pool_tokens=256, block_size=4, max_seqs=2, max_tokens_per_step=8, max_model_len=64)


def simulate(system: System, *requests: Request, cost: StepCost = SECOND_A_STEP) -> Simulation:
    run = system.simulation(requests, cost).run()
    run.scheduler.check()
    assert run.scheduler.pool.num_free == run.scheduler.pool.num_usable
    return run


def test_a_request_waits_for_the_step_that_is_launched_already() -> None:
    first = make_request("first", tuple(fresh(0, 8)), 4)
    second = make_request("second", tuple(fresh(1, 4)), 2, arrival_s=0.5)

    run = simulate(SYSTEM, first, second)

    records = {record.id: record for record in run.requests}
    assert records["first"].first_token_s == 1.0
    assert records["first"].token_gaps_s == (1.0, 1.0, 1.0)
    # Its first chance is when the first step has ended; by then the second one is under way.
    assert records["second"].scheduled_s == 1.0
    assert records["second"].first_token_s == 3.0


def test_without_overlap_a_step_is_scheduled_when_the_one_before_has_ended() -> None:
    first = make_request("first", tuple(fresh(0, 8)), 4)
    second = make_request("second", tuple(fresh(1, 4)), 2, arrival_s=0.5)
    scheduler = Scheduler(SYSTEM.limits, SYSTEM.cache)

    timing = ModelledTiming(SECOND_A_STEP, scheduler)
    run = Simulation(scheduler, (first, second), timing, is_overlapped=False).run()

    assert {r.id: r.first_token_s for r in run.requests} == {"first": 1.0, "second": 2.0}


def test_the_clock_jumps_to_the_next_arrival_when_nothing_is_left_to_do() -> None:
    requests = [make_request(str(i), tuple(fresh(i, 4)), 1, arrival_s=100.0 * i) for i in range(3)]

    run = simulate(SYSTEM, *requests)

    assert [record.finish_s for record in run.requests] == [1.0, 101.0, 201.0]


def test_a_batch_that_is_never_refilled_waits_for_its_longest_and_pays_for_all() -> None:
    lengths = (2, 8, 2, 2)
    requests = [make_request(str(i), (i + 1, 1), n) for i, n in enumerate(lengths)]
    cost = StepCost(1.0, 0.0, 1.0, 0.0)

    continuous = simulate(SYSTEM, *requests, cost=cost)
    static = simulate(replace(SYSTEM, is_static=True), *requests, cost=cost)

    assert {r.id for r in static.requests[:2]} == {"0", "1"}
    first_batch = [step.duration_s for step in static.steps[:8]]
    assert first_batch == [3.0] * 8, "two places are computed to the end"
    assert len(continuous.steps) < len(static.steps)


def test_contiguous_allocation_holds_the_longest_length_for_everybody() -> None:
    load = Load(num_requests=40, prompt_lens=(16, 512), output_lens=(16, 256)).requests()

    paged = System().summary(load, COSTS["two-cores"])
    contiguous = System(is_contiguous=True).summary(load, COSTS["two-cores"])

    assert paged.slot_use > 0.95
    assert 0.2 < contiguous.slot_use < 0.4
    assert paged.num_running_mean > 1.5 * contiguous.num_running_mean


def test_the_summary_adds_up() -> None:
    load = Load(num_requests=20, rate=2.0, prefix_len=64).requests()

    run = simulate(System(), *load, cost=COSTS["two-cores"])
    figures = summarise(run.steps, run.requests, block_size=16)

    assert figures.num_generated == sum(request.max_tokens for request in load)
    cached = sum(record.num_cached_tokens for record in run.requests)
    prompts = sum(len(request.prompt) for request in load)
    assert figures.num_preemptions == 0
    decoded = figures.num_generated - len(load)
    assert figures.num_scheduled == prompts - cached + decoded
    assert figures.hit_rate == cached / prompts > 0.1
    assert 0 < figures.ttft_p50_s <= figures.ttft_p99_s


def test_choices_of_a_request_are_simulated_too() -> None:
    one = make_request("a", tuple(fresh(0, 6)), 3)
    forked = replace(one, sampling=replace(one.sampling, n=2))

    run = simulate(SYSTEM, forked)

    assert run.requests[0].num_generated == 6
    assert run.requests[0].finish_reasons == ("length", "length")


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_fair_share_serves_clients_alike_and_first_come_does_not(policy: str) -> None:
    load = Load(num_requests=120, clients=(8, 1, 1), output_lens=(8, 16), prompt_lens=(16, 64))
    system = replace(System(), max_seqs=4, policy=policy)

    run = simulate(system, *load.requests(), cost=COSTS["two-cores"])

    shares = sorted(run.shares.values())
    assert (shares[-1] < 1.5 * shares[0]) == (policy == "fair")
