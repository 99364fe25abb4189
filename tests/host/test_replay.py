"""A run that is written down is done again, exactly, to any step."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from stories import fresh, make_request

from paged_jax.config import CacheConfig, OptionError, SchedulerConfig
from paged_jax.host.recording import RecordingScheduler, request_from_json, request_to_json
from paged_jax.host.replay import RecordedTiming, Recording, Replay, ReplayError
from paged_jax.host.request import FinishReason
from paged_jax.host.scheduler import Scheduler
from paged_jax.host.simulate import Simulation
from paged_jax.host.system import System

LIMITS, CACHE = SchedulerConfig(4, 16, 64), CacheConfig(10, 4)


def ids_of(step, first: int) -> list[list[int]]:
    return [[first + i for i in range(chunk.num_samples)] for chunk in step.chunks]


def recorded_run(path: Path) -> tuple[RecordingScheduler, list[tuple]]:
    """A run with preemptions, choices, a fork, a stop string, an abort and a forgotten cache."""
    scheduler, states, before = RecordingScheduler(LIMITS, CACHE, path), [], None
    for number in range(4):
        request = make_request(str(number), fresh(number % 2, 9), 12, n=1 + (number == 0))
        scheduler.add(request)
    for number in range(60):
        step = scheduler.schedule(ahead_of=before)
        states.append(state_of(scheduler))
        if before:
            deltas = scheduler.commit(before, ids_of(before, 10 * number))
            if number == 4:
                scheduler.finish(deltas[0].sequence, FinishReason.STOP, "x")
                scheduler.finish(deltas[0].sequence, FinishReason.STOP, "has ended already")
            if number == 6:
                parent = deltas[0].sequence
                prompt = parent.tokens(0, parent.num_tokens)
                scheduler.fork(make_request("fork", prompt, 3), parent)
            if number == 9:
                scheduler.abort("1")
        before = step if step.chunks and scheduler.has_work else None
        if not scheduler.has_work and number < 30:
            assert scheduler.pool.reset_prefix_cache()
            scheduler.add(make_request(f"late{number}", fresh(0, 9), 2))
    return scheduler, states


def state_of(scheduler) -> tuple:
    return tuple(
        (s.request.id, s.index, tuple(s.block_table), s.num_computed) for s in scheduler.sequences
    )


def test_every_step_comes_out_as_recorded_and_leaves_the_same_tables(tmp_path: Path) -> None:
    scheduler, states = recorded_run(tmp_path / "r")
    recording = Recording.read(tmp_path / "r")

    replay = Replay(recording)
    again = [state_of(replay.scheduler) for _ in replay.steps()]

    assert scheduler.num_preemptions > 0 and scheduler.num_copies > 0
    assert {e["event"] for e in recording.events} == {
        "add", "fork", "schedule", "commit", "finish", "abort", "reset",
    }  # fmt: skip
    assert again == states
    assert len(replay.records) == len(recording.of("commit"))


def test_time_travel_stops_where_a_step_has_just_been_scheduled(tmp_path: Path) -> None:
    _, states = recorded_run(tmp_path / "r")
    recording = Recording.read(tmp_path / "r")

    for step in (0, 7, 20):
        assert state_of(Replay(recording).at(step).scheduler) == states[step]
    with pytest.raises(OptionError, match="step 60 is beyond the last of 60"):
        Replay(recording).at(60)


def test_a_step_that_differs_is_named(tmp_path: Path) -> None:
    recorded_run(tmp_path / "r")
    lines = (tmp_path / "r").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if json.loads(line).get("step") == 3)
    event = json.loads(lines[at])
    event["chunks"][0][3] += 1
    (tmp_path / "r").write_text("\n".join([*lines[:at], json.dumps(event), *lines[at + 1 :], ""]))

    with pytest.raises(ReplayError, match="step 3 differs in its chunks"):
        Replay(Recording.read(tmp_path / "r")).run()


def test_a_replay_ends_where_a_request_came_another_way(tmp_path: Path) -> None:
    scheduler = RecordingScheduler(LIMITS, CACHE, tmp_path / "r")
    Scheduler.add(scheduler, make_request("stranger", (1, 2), 3))
    scheduler.schedule()

    with pytest.raises(ReplayError, match="requests stranger were restored"):
        Replay(Recording.read(tmp_path / "r")).run()


def test_a_line_cut_off_by_a_crash_is_left_out_and_other_files_are_refused(tmp_path: Path) -> None:
    recorded_run(tmp_path / "r")
    whole = (tmp_path / "r").read_text()
    (tmp_path / "cut").write_text(whole[:-5])
    (tmp_path / "other").write_text("{}\n")

    cut, full = (Recording.read(tmp_path / name).events for name in ("cut", "r"))

    assert cut == full[:-1]
    with pytest.raises(OptionError, match="must be a file that --record wrote"):
        Recording.read(tmp_path / "other")
    with pytest.raises(OptionError, match=r"--record .* cannot be written"):
        RecordingScheduler(LIMITS, CACHE, tmp_path)


def test_a_request_survives_being_written() -> None:
    bias = {"stop": ["a"], "stop_token_ids": [5], "logit_bias": {7: 1.5}, "seed": 3}
    request = make_request("a", (1, 2), 4, salt="s", priority=2, **bias)

    assert request_from_json(json.loads(json.dumps(request_to_json(request)))) == request


def test_a_simulation_with_the_recorded_times_makes_the_same_decisions(tmp_path: Path) -> None:
    system = System(pool_tokens=256, block_size=4, max_seqs=4, max_tokens_per_step=16)
    requests = [make_request(str(i), fresh(i, 9 + i), 20, arrival_s=0.02 * i) for i in range(9)]
    scheduler = RecordingScheduler(system.limits, system.cache, tmp_path / "r")
    drive_in_real_time(scheduler, requests)
    recording = Recording.read(tmp_path / "r")

    fresh_scheduler = system.simulation((), None).scheduler
    outputs = Replay(recording).run().outputs
    simulation = Simulation(
        fresh_scheduler, recording.requests(), RecordedTiming(recording),
        draw=lambda request, index, position: outputs[request.id, index][position],
    )  # fmt: skip

    for event in recording.of("schedule"):
        work = simulation.step()
        chunks = [[c.sequence.request.id, c.start, c.length] for c in work.chunks]
        assert chunks == [[name, start, length] for name, _, start, length, _ in event["chunks"]]
    assert not simulation.has_work


def drive_in_real_time(scheduler, requests) -> None:
    """What an engine does, its device being a pause."""
    import time

    start_s, waiting, before = time.monotonic(), list(requests), None
    while waiting or scheduler.has_work:
        now_s = time.monotonic()
        while waiting and waiting[0].arrival_s + start_s <= now_s:
            scheduler.add(replace(waiting.pop(0), arrival_s=time.monotonic()))
        if not scheduler.has_work:
            continue
        step = scheduler.schedule(ahead_of=before)
        if before:
            time.sleep(0.002)
            scheduler.commit(before, ids_of(before, 0))
        before = step if step.chunks and scheduler.has_work else None
