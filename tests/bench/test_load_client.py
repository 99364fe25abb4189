"""The load client against a server whose engine repeats the prompt."""

import asyncio
import json
import math
import re

import pytest
from answering import answering

from paged_jax.bench.client import Ask, Endpoint, HttpError, ask, fetch, has_tokens
from paged_jax.bench.load import Pace, send_all
from paged_jax.bench.metrics import Outcome
from paged_jax.config import OptionError


def question(**body) -> Ask:
    return Ask("/v1/completions", {"prompt": [1], "stream": True} | body, 1)


EVENT = b'data: {"choices": [{"text": "a"}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 5, "prompt_tokens": 3}}\n\n'
DONE = b"data: [DONE]\n\n"


def asked(*chunks: bytes, status: str = "200 OK", is_chunked: bool = True) -> Outcome:
    async def run() -> Outcome:
        async with answering(*chunks, status=status, is_chunked=is_chunked) as endpoint:
            return await ask(endpoint, question())

    return asyncio.run(run())


def test_events_are_put_together_from_any_chunks() -> None:
    stream = EVENT + EVENT + USAGE + DONE
    pieces = [stream[index : index + 7] for index in range(0, len(stream), 7)]

    for is_chunked in (True, False):
        outcome = asked(*pieces, is_chunked=is_chunked)
        assert (outcome.error, outcome.output_len, outcome.prompt_len) == (None, 5, 3)
        assert len(outcome.times_s) == 2


def test_without_usage_events_count_as_tokens() -> None:
    assert asked(EVENT, EVENT, DONE).output_len == 2


@pytest.mark.parametrize(
    ("chunks", "status", "reason"),
    [
        ((EVENT,), "200 OK", r"ended without \[DONE\]"),
        ((DONE,), "200 OK", "without a token"),
        ((b'{"error": "full"}',), "503 Busy", 'status 503: {"error": "full"}'),
        ((EVENT, b'data: {"error": {"message": "boom"}}\n\n'), "200 OK", "boom"),
        ((b"data: {not json\n\n",), "200 OK", "JSONDecodeError"),
    ],
)
def test_whatever_goes_wrong_is_an_error_of_that_request(chunks, status, reason) -> None:
    outcome = asked(*chunks, status=status)

    assert outcome.error is not None and outcome.output_len == 0
    assert re.search(reason, outcome.error)


def test_nobody_listening_is_an_error_too() -> None:
    outcome = asyncio.run(ask(Endpoint("127.0.0.1", 1), question()))

    assert outcome.error is not None and "Error" in outcome.error


def test_the_role_of_a_chat_answer_is_not_a_token() -> None:
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    token = {"choices": [{"delta": {"content": "a"}}]}

    assert not has_tokens(role) and not has_tokens({"choices": []})
    assert has_tokens(token) and has_tokens({"choices": [{"text": ""}]})


def test_no_more_requests_are_under_way_than_allowed() -> None:
    running, most = 0, 0

    async def send(_endpoint: Endpoint, _question: Ask) -> Outcome:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return Outcome(1, 1, 0.0, (0.1,))

    pace = Pace(max_concurrency=3)
    outcomes, _ = asyncio.run(send_all(Endpoint("x", 1), [question()] * 10, pace, send))

    assert (len(outcomes), most) == (10, 3)


def test_arrivals_follow_the_rate_and_the_seed() -> None:
    pace = Pace(request_rate=50.0, seed=3)
    arrivals = pace.arrivals_s(4000)

    assert arrivals == Pace(request_rate=50.0, seed=3).arrivals_s(4000) == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(80, rel=0.1)
    assert Pace(request_rate=math.inf).arrivals_s(2) == [0.0, 0.0]


@pytest.mark.parametrize("wrong", [{"request_rate": 0.0}, {"burstiness": -1.0}])
def test_a_pace_that_makes_no_sense_is_refused(wrong) -> None:
    with pytest.raises(OptionError, match="must be above 0"):
        Pace(**wrong)


def test_urls_are_read_and_wrong_ones_named() -> None:
    assert Endpoint.of("http://[::1]:80/api/") == Endpoint("::1", 80, root="/api")
    assert Endpoint.of("https://host").port == 443
    with pytest.raises(OptionError, match="ftp://x"):
        Endpoint.of("ftp://x")


def test_fetch_returns_a_body_or_says_the_status() -> None:
    async def run(status: str) -> str:
        async with answering(json.dumps([1]).encode(), status=status) as endpoint:
            return await fetch(endpoint, "/v1/models")

    assert asyncio.run(run("200 OK")) == "[1]"
    with pytest.raises(HttpError, match="404"):
        asyncio.run(run("404 Not Found"))
