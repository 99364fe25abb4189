"""A snapshot taken between any two steps, continued with blocks of another size."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from resumed import abort_all, add_all, run, run_on_two, told

from paged_jax import LLM, SamplingParams
from paged_jax.host.saved import SnapshotError
from paged_jax.host.trace import PoolUsage

COUNT = 20


@pytest.fixture(scope="module")
def expected(llm: LLM) -> dict:
    """What the load gives without interruption."""
    assert llm.reset_prefix_cache()
    add_all(llm.engine, COUNT)
    return told(run(llm.engine))


@pytest.mark.parametrize("options", [{"block_size": 64}, {"num_gpu_blocks_override": 20}])
def test_every_request_ends_as_without_it(llm, make_llm, expected, tmp_path, options) -> None:
    other = make_llm(**options)
    for seed in range(3):
        num_steps = random.Random(seed).randrange(1, 24)
        assert llm.reset_prefix_cache()

        path = tmp_path / str(seed)
        seen = run_on_two(llm.engine, other.engine, path, count=COUNT, num_steps=num_steps)

        assert told(seen) == expected
        assert other.engine.stats().usage.num_used == 0


def test_outputs_are_finished_offline_too(llm: LLM, begun, expected) -> None:
    outputs = llm.restore(begun[0], use_tqdm=False)

    assert outputs[0].finished and outputs[0].prompt_token_ids
    for output in outputs:
        for choice in output.outputs:
            ids, text, *_ = expected[output.request_id, choice.index]
            assert (choice.token_ids, choice.text) == (ids, text)


@pytest.fixture
def begun(llm: LLM, tmp_path: Path) -> Iterator[tuple[Path, PoolUsage]]:
    """A snapshot of the shared engine, which has no requests any more."""
    assert llm.reset_prefix_cache()
    add_all(llm.engine, COUNT)
    run(llm.engine, 6)
    usage = llm.engine.stats().usage
    llm.engine.snapshot(tmp_path / "state")
    abort_all(llm.engine)
    yield tmp_path / "state", usage
    abort_all(llm.engine)


def test_what_was_computed_and_shared_is_so_again(llm: LLM, begun) -> None:
    path, before = begun
    llm.engine.restore(path)
    after = llm.engine.stats().usage
    assert after.num_used <= before.num_used
    assert before.num_tokens - COUNT <= after.num_tokens <= before.num_tokens


def test_a_step_on_its_way_is_drawn_again(llm: LLM, tmp_path: Path) -> None:
    engine = llm.engine
    assert llm.reset_prefix_cache()
    for number in range(4):
        params = SamplingParams(seed=number, max_tokens=9, ignore_eos=True)
        engine.add([5 + number] * 20, params, request_id=str(number))
    run(engine, 5)
    assert engine._in_flight, "trigger: nothing is on its way"
    engine.snapshot(tmp_path / "state")
    rest = told(run(engine))

    engine.restore(tmp_path / "state")

    assert told(run(engine)) == rest and len(rest) == 4


def test_an_engine_with_requests_does_not_restore(llm: LLM, begun) -> None:
    llm.engine.add([5] * 9, SamplingParams(), request_id="a")
    with pytest.raises(SnapshotError, match="the engine has 1 requests: restore into one that has"):
        llm.engine.restore(begun[0])
    llm.engine.abort("a")


def test_other_weights_are_refused(llm: LLM, begun, monkeypatch) -> None:
    params = llm.engine.params
    layer = jax.tree.map(lambda leaf: leaf + 1, params.layers[1])
    changed = params.replace(layers=(params.layers[0], layer))
    monkeypatch.setattr(llm.engine.executor, "params", changed)
    with pytest.raises(SnapshotError, match="with other weights than these: load that model"):
        llm.engine.restore(begun[0])
    assert not llm.engine.has_work


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("scheduler", {"max_model_len": 50}),
            "request '5' cannot go on here: the maximum context",
        ),
        (
            ("cache", {"dtype": "int8"}),
            "float32, but this pool's are int8: choose --kv-cache-dtype",
        ),
        (
            ("model", {"rope_theta": 5e5}),
            "a model with rope_theta 10000.0, but this one has 500000",
        ),
    ],
)
def test_what_does_not_fit_this_engine_is_refused(llm, begun, monkeypatch, change, message) -> None:
    part, fields = change
    config = llm.engine.config
    changed = replace(config, **{part: replace(getattr(config, part), **fields)})
    monkeypatch.setattr(llm.engine, "config", changed)
    with pytest.raises(SnapshotError, match=message):
        llm.engine.restore(begun[0])
    assert not llm.engine.has_work
