"""AsyncEngine: streams equal whole answers, aborts free everything, failed steps are told."""

import asyncio
import random
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from paged_jax import LLM, AsyncEngine, InvalidRequest, SamplingParams
from paged_jax.config import ModelError
from paged_jax.engine.answers import ChoiceText
from paged_jax.host.request import TokenDelta
from paged_jax.outputs import CompletionOutput, RequestOutput

PROMPT = [3 + index % 200 for index in range(40)]


@pytest.fixture
def served(llm: LLM) -> Iterator[AsyncEngine]:
    """The shared engine behind a stepping thread, which is stopped at the end."""
    engine = AsyncEngine(llm.engine)
    engine.start()
    yield engine
    engine.stop()


async def collect(
    engine: AsyncEngine, params: SamplingParams, *, request_id: str = "a"
) -> RequestOutput:
    choices = [CompletionOutput(index) for index in range(params.n)]
    output = RequestOutput(request_id, None, PROMPT, choices)
    async for delta in engine.generate(PROMPT, params, request_id=request_id):
        assert not output.finished, "a delta after the last"
        output.absorb(delta)
    return output


def test_stream_equals_whole(llm: LLM, served: AsyncEngine) -> None:
    params = SamplingParams(n=2, seed=4, max_tokens=20, logprobs=2, stop=["zq"])
    streamed = asyncio.run(collect(served, params))
    served.stop()
    whole = llm.generate([PROMPT], params, use_tqdm=False)[0]
    for one, other in zip(streamed.outputs, whole.outputs, strict=True):
        assert (one.text, one.token_ids, one.finish_reason) == (
            other.text,
            other.token_ids,
            other.finish_reason,
        )
        assert chosen(one) == pytest.approx(chosen(other), abs=1e-4)


def chosen(choice: CompletionOutput) -> list[float]:
    """The log-probability of each chosen token, rounded as its batch shape makes it."""
    pairs = zip(choice.token_ids, choice.logprobs or [], strict=True)
    return [table[token].logprob for token, table in pairs]


def test_parameters_are_replaced_between_steps_and_errors_reach_the_caller(llm, served) -> None:
    params, before = llm.engine.params, llm.engine.weights_version

    async def main() -> tuple[int, int]:
        version = await served.update_params(params)
        with pytest.raises(ModelError, match="unembed is missing"):
            await served.update_params(replace(params, unembed=None))
        output = await collect(served, SamplingParams(max_tokens=2))
        return version, output.weights_version

    assert asyncio.run(main()) == (before + 1, before + 1)
    assert served.is_healthy


def test_many_streams_at_once_each_end_once(served: AsyncEngine) -> None:
    async def main() -> list[RequestOutput]:
        params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
        names = [str(index) for index in range(50)]
        return await asyncio.gather(*(collect(served, params, request_id=name) for name in names))

    outputs = asyncio.run(main())
    assert {tuple(output.outputs[0].token_ids) for output in outputs} == {
        tuple(outputs[0].outputs[0].token_ids)
    }
    assert all(output.finished for output in outputs)


def test_a_step_wakes_the_event_loop_once(served: AsyncEngine, monkeypatch) -> None:
    steps, wakes = [], []

    async def main() -> list[RequestOutput]:
        loop, step = asyncio.get_running_loop(), served.engine.step
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(served.engine, "step", lambda: steps.append(1) or step())
        monkeypatch.setattr(
            loop, "call_soon_threadsafe", lambda *call: wakes.append(call) or wake(*call)
        )
        params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
        return await asyncio.gather(
            *(collect(served, params, request_id=str(index)) for index in range(8))
        )

    assert all(output.finished for output in asyncio.run(main()))
    assert len(wakes) <= len(steps) < 8 * 6


def test_an_idle_engine_sleeps_and_wakes_for_a_request(served: AsyncEngine, monkeypatch) -> None:
    rounds, stats = [], served.engine.stats  # asked once in each round of the stepping thread
    monkeypatch.setattr(served.engine, "stats", lambda: rounds.append(1) or stats())

    async def main() -> tuple[int, int, int]:
        params = SamplingParams(max_tokens=2, ignore_eos=True)
        await collect(served, params, request_id="first")
        await asyncio.sleep(0.05)
        before = len(rounds)
        await asyncio.sleep(0.1)
        idle = len(rounds)
        await collect(served, params, request_id="second")
        return before, idle, len(rounds)

    before, idle, after = asyncio.run(main())
    assert before == idle < after


def test_300_aborted_requests_leak_nothing(llm: LLM, served: AsyncEngine) -> None:
    """Queued, mid-prefill, decoding, not read at all, n > 1."""
    draw = random.Random(0)
    before = llm.engine.scheduler.pool.num_free

    async def abandon(name: str) -> None:
        prompt = [draw.randrange(3, 260) for _ in range(draw.choice([1, 20, 100, 200]))]
        params = SamplingParams(n=draw.choice([1, 1, 4]), max_tokens=50, ignore_eos=True)
        stream = served.generate(prompt, params, request_id=name)
        reads, wait = draw.choice([0, 1, 5]), draw.choice([0.0, 0.01, 0.2])
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(wait)
        for _ in range(reads):
            try:
                await task
            except StopAsyncIteration:
                break
            task = asyncio.ensure_future(anext(stream))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await stream.aclose()

    async def main() -> RequestOutput:
        await asyncio.gather(*(abandon(str(index)) for index in range(300)))
        params = SamplingParams(temperature=0.0, max_tokens=8)
        return await collect(served, params, request_id="after")

    after = asyncio.run(main())
    assert served.is_healthy
    served.stop()
    assert not llm.engine.has_work
    llm.engine.scheduler.check()
    assert llm.engine.scheduler.pool.num_free == before
    assert llm.engine.num_live == 0
    params = SamplingParams(temperature=0.0, max_tokens=8)
    assert (
        after.outputs[0].text == llm.generate([PROMPT], params, use_tqdm=False)[0].outputs[0].text
    )


def test_gauges_are_zero_after_a_load_that_was_dropped(served: AsyncEngine) -> None:
    async def gauges_of(count: int) -> tuple[int, ...]:
        params = SamplingParams(max_tokens=200, ignore_eos=True)
        tasks = [
            asyncio.ensure_future(collect(served, params, request_id=str(index)))
            for index in range(count)
        ]
        while not served.stats().num_running:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(500):
            stats = served.stats()
            gauges = (stats.num_running, stats.num_waiting, stats.usage.num_used)
            if not any(gauges):
                break
            await asyncio.sleep(0.01)
        return gauges

    assert asyncio.run(gauges_of(20)) == (0, 0, 0)


def test_invalid_request_raises_at_once(served: AsyncEngine) -> None:
    with pytest.raises(InvalidRequest, match="out of vocabulary"):
        asyncio.run(anext(served.generate([10**9], SamplingParams(), request_id="a")))


def test_failed_step_is_told_and_the_engine_is_unhealthy(make_llm, monkeypatch) -> None:
    engine = AsyncEngine(make_llm().engine)
    engine.start()
    monkeypatch.setattr(engine.engine, "step", lambda: 1 / 0)

    output = asyncio.run(last_error(engine, "a"))
    later = asyncio.run(last_error(engine, "b"))

    assert output == later == "the engine failed: ZeroDivisionError"
    assert not engine.is_healthy
    engine.stop()


async def last_error(
    engine: AsyncEngine, request_id: str, params: SamplingParams | None = None
) -> str | None:
    error = None
    async for delta in engine.generate(PROMPT, params or SamplingParams(), request_id=request_id):
        error = delta.error
    return error


def test_drain_ends_what_does_not_end_in_time(served: AsyncEngine) -> None:
    async def main() -> list[RequestOutput]:
        short = SamplingParams(max_tokens=2, ignore_eos=True)
        endless = SamplingParams(max_tokens=200, ignore_eos=True)
        tasks = [
            asyncio.ensure_future(collect(served, params, request_id=name))
            for name, params in (("short", short), ("endless", endless))
        ]
        await asyncio.sleep(0)
        await served.drain(0.1)
        return await asyncio.gather(*tasks)

    short, endless = asyncio.run(main())
    assert short.outputs[0].finish_reason == "length"
    assert endless.outputs[0].finish_reason in ("abort", "length")
    assert served.is_draining


def test_request_that_fails_does_not_touch_another(served: AsyncEngine, monkeypatch) -> None:
    absorb = ChoiceText.absorb

    def fail_on_seven(self: ChoiceText, delta: TokenDelta) -> tuple[str, str | None]:
        if delta.sequence.request.sampling.max_tokens == 7 and len(delta.sequence.output) == 3:
            raise KeyError("broken")
        return absorb(self, delta)

    async def main() -> tuple[str | None, RequestOutput]:
        bad = SamplingParams(n=2, max_tokens=7, ignore_eos=True)
        good = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
        return await asyncio.gather(
            last_error(served, "bad", bad), collect(served, good, request_id="good")
        )

    alone = asyncio.run(main())[1]
    monkeypatch.setattr(ChoiceText, "absorb", fail_on_seven)
    error, good = asyncio.run(main())

    assert error == "the request failed: KeyError"
    assert good.outputs[0].token_ids == alone.outputs[0].token_ids and good.finished
    assert served.is_healthy and served.engine.num_live == 0
    served.engine.scheduler.check()


def test_reset_prefix_cache_forgets_only_when_nothing_runs(served: AsyncEngine) -> None:
    async def main() -> tuple[list[bool], list[int]]:
        params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
        stream = served.generate(PROMPT, params, request_id="long")
        await anext(stream)  # type: ignore[arg-type]
        done = [await served.reset_prefix_cache()]
        async for _ in stream:
            pass
        cached = [(await collect(served, params)).num_cached_tokens]
        done.append(await served.reset_prefix_cache())
        cached.append((await collect(served, params)).num_cached_tokens)
        return done, cached

    done, (warm, cold) = asyncio.run(main())
    assert done == [False, True] and warm > 0 and cold == 0


def test_stuck_step_is_told_by_its_age(served: AsyncEngine, monkeypatch) -> None:
    entered, leave = threading.Event(), threading.Event()
    step = served.engine.step

    def stuck():
        entered.set()
        leave.wait(60)
        return step()

    async def story() -> tuple[float, float]:
        monkeypatch.setattr(served.engine, "step", stuck)
        task = asyncio.create_task(collect(served, SamplingParams(max_tokens=2)))
        await asyncio.to_thread(entered.wait, 60)
        await asyncio.sleep(0.05)
        stuck_s = served.busy_s
        leave.set()
        await task
        while served.engine.has_work or served.busy_s:
            await asyncio.sleep(0.01)
        return stuck_s, served.busy_s

    stuck_s, after_s = asyncio.run(story())
    assert stuck_s >= 0.05 and after_s == 0.0
