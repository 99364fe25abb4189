"""A recorded run is done again by an engine, to the id; and simulated, to the decision."""

from pathlib import Path

import pytest

from paged_jax import BeamSearchParams, SamplingParams
from paged_jax.bench.datasets import BenchRequest
from paged_jax.bench.simulator import num_alike, run_for_real
from paged_jax.host.recording import RecordingScheduler
from paged_jax.host.replay import Recording, Replay
from paged_jax.replay import generate_again, main, state_text


@pytest.fixture
def recorded(llm, tmp_path: Path):
    """The shared engine, recording."""
    engine, path = llm.engine, tmp_path / "run"
    before = engine.scheduler
    engine.scheduler = RecordingScheduler(engine.config.scheduler, engine.config.cache, path)
    yield engine, path
    engine.scheduler = before


def test_an_engine_draws_the_same_ids_again(llm, recorded) -> None:
    engine, path = recorded
    drawn = SamplingParams(temperature=1.0, n=2, max_tokens=9, seed=5)
    unseeded = SamplingParams(temperature=1.0, max_tokens=12)
    prompts = [[9] * 40, [9] * 33, [7, 8, 9]]
    llm.generate(prompts, [drawn, unseeded, unseeded], use_tqdm=False)
    recording = Recording.read(path)
    outputs = Replay(recording).run().outputs

    engine.scheduler = RecordingScheduler(
        engine.config.scheduler, engine.config.cache, path.with_name("again")
    )
    again = generate_again(engine, recording)

    assert again == outputs
    assert sum(map(len, again.values())) > 12


def test_beams_are_replayed_with_the_picks_recorded(llm, recorded) -> None:
    _, path = recorded
    search = BeamSearchParams(beam_width=3, max_tokens=8, ignore_eos=True)
    llm.beam_search([[9] * 40, [7, 8, 9]], search)
    recording = Recording.read(path)

    replay = Replay(recording).run()

    assert len(recording.of("branch")) >= 7 and not replay.outputs
    assert replay.scheduler.num_running == 0 and replay.scheduler.num_copies > 0


def test_the_simulator_decides_as_the_engine_did(recorded) -> None:
    engine, path = recorded
    requests = [BenchRequest((5 + i,) * (20 + 9 * i), 6 + i) for i in range(12)]

    figures = run_for_real(engine, requests, [0.004 * i for i in range(12)])
    recording = Recording.read(path)

    assert figures.num_generated == sum(request.max_tokens for request in requests)
    assert num_alike(recording) == recording.num_steps > 10


def test_the_command_checks_a_recording_and_shows_its_blocks(recorded, llm, capsys) -> None:
    _, path = recorded
    llm.generate([[5] * 40] * 2, SamplingParams(max_tokens=4, temperature=0.0), use_tqdm=False)

    main([str(path)])

    assert "of 2 sequences: the same decisions" in capsys.readouterr().out
    head, blocks, *_ = state_text(Recording.read(path), 1).splitlines()
    assert head == "step 1: 2 running, 0 waiting"
    assert blocks.startswith("AAa") and "b" in blocks
    with pytest.raises(SystemExit):
        main([str(path), "--step", "99"])
    assert "step 99 is beyond" in capsys.readouterr().err


def test_an_engine_that_is_told_to_records_and_the_command_generates_it_again(
    make_llm, tiny_folder, tmp_path, capsys
) -> None:
    path = tmp_path / "run"
    llm = make_llm(record=str(path), num_gpu_blocks_override=20)
    to_a_stop = SamplingParams(temperature=1.0, max_tokens=30, stop=["e"])
    to_the_end = SamplingParams(temperature=1.0, max_tokens=30, ignore_eos=True)
    sampling = [*[to_the_end] * 4, to_a_stop, to_a_stop]  # four are more than there are blocks for
    llm.generate([[5 + i] * 60 for i in range(6)], sampling, use_tqdm=False)
    flags = (
        "--dtype float32 --max-model-len 256 --max-num-batched-tokens 64 --max-num-seqs 32"
        " --num-gpu-blocks-override 20"
    )

    main([str(path), "--on-engine", "--model", str(tiny_folder), *flags.split()])

    assert llm.engine.scheduler.num_preemptions > 0
    assert "tokens: the same ids" in capsys.readouterr().out
