"""A running request continued in another direction gives what its first tokens give alone."""

from collections.abc import Iterator

import pytest

from paged_jax import LLM, InvalidRequest, SamplingParams
from paged_jax.engine.engine import Engine

PROMPT = [3 + (11 * index) % 240 for index in range(37)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture
def engine(llm: LLM) -> Iterator[Engine]:
    """The shared engine, on which request "a" has given 10 tokens."""
    assert llm.reset_prefix_cache()
    llm.engine.add(PROMPT, GREEDY, request_id="a")
    while len(tokens_of(llm.engine)) < len(PROMPT) + 10:
        llm.engine.step()
    yield llm.engine
    for request_id in "ab":
        llm.engine.abort(request_id)


def tokens_of(engine: Engine) -> list[int]:
    [sequence] = engine.scheduler.live("a")
    return list(sequence.tokens(0, sequence.num_tokens))


def finish(engine: Engine) -> dict[str, list[int]]:
    """Run to the end with all checks; return each request's new tokens."""
    found: dict[str, list[int]] = {"a": [], "b": []}
    while engine.has_work:
        for delta in engine.step():
            found[delta.request_id] += [t for choice in delta.choices for t in choice.token_ids]
        engine.scheduler.check()
    return found


def alone(llm: LLM, prompt: list[int], params: SamplingParams) -> list[int]:
    assert llm.reset_prefix_cache()
    return llm.generate([prompt], params, use_tqdm=False)[0].outputs[0].token_ids


@pytest.mark.parametrize("at", [20, 32, 37, 45, None])
def test_a_fork_gives_what_its_tokens_give_as_a_prompt(llm: LLM, engine: Engine, at) -> None:
    tokens = tokens_of(engine)
    prompt = tokens[:at]
    params = SamplingParams(temperature=0.9, seed=5, max_tokens=20, ignore_eos=True)

    engine.fork("a", new_id="b", at=at, params=params)
    [fork] = engine.scheduler.live("b")
    assert fork.num_computed == len(prompt) - 1, "trigger: nothing is shared"
    found = finish(engine)

    assert found["b"] == alone(llm, prompt, params)
    assert tokens + found["a"] == PROMPT + alone(llm, PROMPT, GREEDY)


def test_without_parameters_a_fork_goes_on_as_the_other_would(engine: Engine) -> None:
    known = len(tokens_of(engine)) - len(PROMPT)

    engine.fork("a", new_id="b")
    found = finish(engine)

    assert len(found["b"]) == 24 and found["b"][: 24 - known] == found["a"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": 0}, "at is 0 but must be between 1 and"),
        ({"at": 500}, "at is 500 but"),
        ({"choice": 1}, "choice 1 of request 'a' is not running: choose from 0"),
        ({"new_id": "a"}, "request id 'a' is in use"),
        ({"params": SamplingParams(max_tokens=999)}, "max_tokens"),
    ],
)
def test_an_impossible_fork_is_refused(engine: Engine, options, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        engine.fork("a", **({"new_id": "b"} | options))


def test_a_request_that_has_ended_cannot_be_forked(engine: Engine) -> None:
    finish(engine)
    with pytest.raises(InvalidRequest, match="'a' is not running: add its tokens as a prompt"):
        engine.fork("a", new_id="b")
