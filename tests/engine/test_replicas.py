"""Replicas: placed by prefix and load, answers as of one engine, one's death is not the others'."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from paged_jax import LLM, AsyncEngine, InvalidRequest, SamplingParams
from paged_jax.config import OptionError
from paged_jax.engine.accounts import Accounts
from paged_jax.engine.engine import Engine
from paged_jax.host.trace import RequestRecord, StepRecord
from paged_jax.outputs import RequestDelta
from paged_jax.replicas import Replicas

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True)
PROMPTS = [[3 + (7 * i + j) % 250 for j in range(40 + i)] for i in range(6)]


@pytest.fixture(scope="module")
def engines(llm: LLM) -> list[Engine]:
    """Two on one device, which they do not notice."""
    first = llm.engine
    return [first, Engine(first.config, first.params, first.tokenizer)]


@pytest.fixture
def pair(engines: list[Engine], monkeypatch) -> Iterator[Replicas]:
    """Two fresh replicas."""
    for engine in engines:
        for name, value in vars(Accounts()).items():
            monkeypatch.setattr(engine._accounts, name, value)
        assert engine.reset_prefix_cache()
    yield Replicas(engines)
    for engine in engines:
        for name in ("a", "b"):  # what a dead one still has
            engine.abort(name)


@pytest.fixture
def served(pair: Replicas) -> Iterator[AsyncEngine]:
    engine = AsyncEngine(pair)
    engine.start()
    yield engine
    engine.stop()


def run(replicas: Replicas) -> dict[str, RequestDelta]:
    """Step to the end; return each request's deltas as one."""
    whole: dict[str, RequestDelta] = {}
    while replicas.has_work:
        for delta in replicas.step():
            before = whole.get(delta.request_id)
            whole[delta.request_id] = before.merged(delta) if before else delta
    return whole


def ids(delta: RequestDelta) -> tuple[int, ...]:
    return delta.choices[0].token_ids


def test_answers_are_those_of_one_engine_and_the_load_is_shared(pair, llm: LLM) -> None:
    for index, prompt in enumerate(PROMPTS):
        pair.add(prompt, GREEDY, request_id=str(index))

    whole = run(pair)
    parts, both = [engine.stats() for engine in pair.engines], pair.stats()

    expected = [out.outputs[0].token_ids for out in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]
    assert [list(ids(whole[str(index)])) for index in range(6)] == expected
    assert [stats.generation_tokens for stats in parts] == [36, 36]
    assert both.generation_tokens == 72
    assert both.usage.num_blocks == sum(stats.usage.num_blocks for stats in parts)


def test_a_request_goes_where_its_prefix_is_cached_unless_that_is_busy(pair) -> None:
    pair.add(PROMPTS[0], GREEDY, request_id="other")
    pair.add(PROMPTS[5], GREEDY, request_id="first")
    run(pair)

    for index in range(3):
        pair.add([*PROMPTS[5], 9], ENDLESS, request_id=f"again {index}")
        pair.step()
    whole = run(pair)

    drawn = [engine.stats().generation_tokens for engine in pair.engines]
    assert drawn == [12 + 150, 12 + 2 * 150]  # 32 cached tokens are worth one request more
    assert [whole[f"again {index}"].num_cached_tokens for index in range(3)] == [32, 32, 0]


def test_refused_requests_and_ids_in_use_are_told_at_once(pair) -> None:
    pair.add(PROMPTS[0], GREEDY, request_id="a")
    with pytest.raises(InvalidRequest, match="in use"):
        pair.add(PROMPTS[1], GREEDY, request_id="a")
    with pytest.raises(InvalidRequest, match="out of vocabulary"):
        pair.add([10**9], GREEDY, request_id="b")
    assert not pair.reset_prefix_cache()
    run(pair)
    assert pair.reset_prefix_cache()


def test_abort_reaches_the_replica_and_loses_nothing_drawn_before(pair) -> None:
    for name in "ab":
        pair.add(PROMPTS[ord(name) % 6], ENDLESS, request_id=name)
    told = [delta for _ in range(9) for delta in pair.step() if delta.request_id == "b"]

    last = pair.abort("b")
    rest = run(pair)

    assert last is not None and last.finished and last.choices[0].finish_reason == "abort"
    drawn = sum(len(ids(delta)) for delta in [*told, last])
    assert pair.stats().generation_tokens == drawn + 150
    assert rest["a"].finished and "b" not in rest and pair.abort("b") is None
    assert [engine.num_live for engine in pair.engines] == [0, 0]


def test_a_dead_replica_is_named_and_the_other_goes_on(pair, served, monkeypatch) -> None:
    monkeypatch.setattr(pair.engines[0], "step", lambda: 1 / 0)

    async def ask(name: str) -> RequestDelta:
        async for delta in served.generate(PROMPTS[0], GREEDY, request_id=name):
            last = delta
        return last

    async def main() -> list[RequestDelta]:
        both = await asyncio.gather(ask("a"), ask("b"))
        return [*both, await ask("c")]

    dead, *others = asyncio.run(main())
    assert dead.error == "replica 1 of 2 failed: ZeroDivisionError"
    assert [delta.error for delta in others] == [None, None]
    assert served.is_healthy and pair.stats().num_dead_replicas == 1


def test_a_hung_replica_is_told_by_its_age_while_the_other_goes_on(
    pair, served, monkeypatch
) -> None:
    leave, step = threading.Event(), pair.engines[0].step
    monkeypatch.setattr(pair.engines[0], "step", lambda: leave.wait(60) and step())

    async def ask(name: str) -> None:
        async for _ in served.generate(PROMPTS[0], GREEDY, request_id=name):
            pass

    async def main() -> tuple[float, float]:
        hung = asyncio.create_task(ask("a"))
        await asyncio.sleep(0)
        await ask("b")
        await asyncio.sleep(0.05)
        stuck_s = served.busy_s
        leave.set()
        await hung
        return stuck_s, pair.busy_s

    stuck_s, after_s = asyncio.run(main())
    assert stuck_s >= 0.05 and after_s == 0.0


def test_the_block_map_is_of_all_replicas(pair, served) -> None:
    told = asyncio.run(served.block_map())
    assert told.num_blocks == pair.stats().usage.num_blocks == len(told.refs)


def test_when_all_are_dead_so_is_the_engine(pair, monkeypatch) -> None:
    for engine in pair.engines:
        monkeypatch.setattr(engine, "step", lambda: 1 / 0)
    for name in "ab":
        pair.add(PROMPTS[0], GREEDY, request_id=name)

    with pytest.raises(ZeroDivisionError):
        run(pair)
    with pytest.raises(RuntimeError, match=r"replica 1 of 2 failed.*replica 2 of 2 failed"):
        pair.add(PROMPTS[0], GREEDY, request_id="c")


def test_observers_see_every_replica(pair) -> None:
    class Log:
        def __init__(self) -> None:
            self.steps, self.ended = 0, set[str]()

        def on_step(self, record: StepRecord) -> None:
            self.steps += record.num_generated

        def on_finish(self, record: RequestRecord) -> None:
            self.ended.add(record.id)

    log = Log()
    pair.add_observer(log)
    for name in "ab":
        pair.add(PROMPTS[0], GREEDY, request_id=name)
    run(pair)
    assert (log.steps, log.ended) == (24, {"a", "b"})


def test_parameters_of_replicas_are_not_replaced(pair, served) -> None:
    with pytest.raises(OptionError, match="--data-parallel-size 1"):
        asyncio.run(served.update_params(pair.engines[0].params))
    assert served.is_healthy
