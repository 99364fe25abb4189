"""With steps overlapped everything is as without, and nothing is computed in vain but one token."""

from collections.abc import Iterator

import pytest
from mixed_load import make_load

from paged_jax import LLM, SamplingParams
from paged_jax.host.request import ScheduledStep
from paged_jax.outputs import CompletionOutput, RequestOutput


def told(output: RequestOutput) -> list[tuple[object, ...]]:
    """What a user gets to see."""
    return [(c.index, c.token_ids, c.text, c.finish_reason, c.stop_reason) for c in output.outputs]


def chosen(choice: CompletionOutput) -> list[float]:
    pairs = zip(choice.token_ids, choice.logprobs or [], strict=False)
    return [table[token].logprob for token, table in pairs]


@pytest.fixture(scope="module")
def overlapped(llm: LLM) -> LLM:
    assert llm.engine.config.async_scheduling
    return llm


@pytest.fixture
def steps(overlapped: LLM, monkeypatch) -> Iterator[list[ScheduledStep]]:
    """Every step the shared engine schedules."""
    scheduler, seen = overlapped.engine.scheduler, []
    schedule = scheduler.schedule
    monkeypatch.setattr(
        scheduler, "schedule", lambda **options: seen.append(schedule(**options)) or seen[-1]
    )
    yield seen


@pytest.mark.parametrize("num_blocks", [None, 18])
def test_overlapped_equals_one_after_the_other(make_llm, num_blocks: int | None) -> None:
    prompts, params = make_load(42)
    options = {"num_gpu_blocks_override": num_blocks, "max_num_seqs": 16}
    outputs = []
    for is_on in (True, False):
        llm = make_llm(async_scheduling=is_on, **options)
        outputs.append(llm.generate(prompts, params, use_tqdm=False))
        llm.engine.scheduler.check()
        assert llm.engine.stats().usage.num_used == 0
        if num_blocks:
            assert llm.engine.stats().num_preemptions, "trigger: nothing was preempted"

    for on, off in zip(*outputs, strict=True):
        assert told(on) == told(off)
        for one, other in zip(on.outputs, off.outputs, strict=True):
            assert chosen(one) == pytest.approx(chosen(other), abs=1e-4)
    reasons = {choice.finish_reason for on in outputs[0] for choice in on.outputs}
    assert reasons == {"stop", "length"}, "trigger: no end but by length"


def computed(steps: list[ScheduledStep]) -> int:
    return sum(step.num_tokens for step in steps)


def test_an_end_by_length_wastes_nothing(overlapped: LLM, steps: list[ScheduledStep]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    assert overlapped.reset_prefix_cache()
    overlapped.generate([[5] * 20, [6] * 20], params, use_tqdm=False)
    assert computed(steps) == 2 * (20 + 4)


def test_an_end_seen_late_wastes_one_token(overlapped: LLM, steps: list[ScheduledStep]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=50, logit_bias={2: 100.0}, min_tokens=3)
    assert overlapped.reset_prefix_cache()
    [output] = overlapped.generate([[5] * 20], params, use_tqdm=False)
    assert output.outputs[0].token_ids[3:] == [2]
    assert computed(steps) == 20 + 3 + 1


def test_a_step_is_launched_before_the_one_before_it_is_read(overlapped: LLM, monkeypatch) -> None:
    scheduler, programs = overlapped.engine.scheduler, overlapped.engine.executor.programs
    commit, draw, events = scheduler.commit, programs.run_draw, []
    monkeypatch.setattr(scheduler, "commit", lambda *a: events.append("read") or commit(*a))
    monkeypatch.setattr(programs, "run_draw", lambda *a: events.append("draw") or draw(*a))

    overlapped.generate([[5] * 9], SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
    assert events == ["draw", "draw", "read", "draw", "read", "read"]

    events.clear()  # penalties count every token, so that each is waited for
    params = SamplingParams(max_tokens=3, ignore_eos=True, presence_penalty=1.0)
    overlapped.generate([[5] * 9], params, use_tqdm=False)
    assert events == ["draw", "read"] * 3
