"""Endpoints for operators: the load, ending requests, forgetting prefixes, the description."""

import dataclasses
import json

import pytest
from fake_engine import FakeEngine
from served_engine import SETTINGS, Served, eventually, serve

LONG = {"prompt": "ab", "max_tokens": 500, "stream": True}


@pytest.fixture(scope="module")
def guarded():
    yield from serve(FakeEngine(), dataclasses.replace(SETTINGS, api_keys=("secret",)))


def events(response):
    lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


@pytest.mark.parametrize("given", ["mine", "cmpl-mine"])
def test_aborted_request_ends_as_such(slow: Served, given):
    with slow.http.stream("POST", "/v1/completions", json=LONG | {"request_id": "mine"}) as stream:
        assert eventually(lambda: bool(slow.engine.running))
        assert slow.post("/abort_request", request_id=given).json() == {"num_aborted": 1}
        last = events(stream)[-1]
    assert last["choices"][0]["finish_reason"] == "abort" and not slow.engine.running


def test_all_requests_can_be_aborted(slow: Served):
    with slow.http.stream("POST", "/v1/completions", json=LONG | {"prompt": ["a", "b"]}) as stream:
        assert eventually(lambda: len(slow.engine.running) == 2)
        assert slow.post("/abort_request", abort_all=True).json() == {"num_aborted": 2}
        assert len(events(stream)) >= 2
    assert slow.post("/abort_request", abort_all=True).json() == {"num_aborted": 0}


@pytest.mark.parametrize(
    "body", [{}, {"request_id": "x", "abort_all": True}, {"request_id": 5}, {"request_id": ""}]
)
def test_abort_needs_one_target(served: Served, body):
    assert served.refused("/abort_request", **body)["param"] == "request_id"


def test_unknown_request_is_none_aborted(served: Served):
    assert served.post("/abort_request", request_id="nobody").json() == {"num_aborted": 0}


def test_prefix_cache_is_kept_while_requests_run(slow: Served):
    with slow.http.stream("POST", "/v1/completions", json=LONG):
        assert eventually(lambda: bool(slow.engine.running))
        assert slow.http.post("/reset_prefix_cache").json() == {"success": False}
    assert eventually(lambda: not slow.engine.running)
    assert slow.http.post("/reset_prefix_cache").json() == {"success": True}


def test_generating_health_check_makes_a_token(served: Served):
    before = served.engine.num_yielded
    response = served.http.get("/health_generate")
    assert (response.status_code, response.content) == (200, b"")
    assert served.engine.num_yielded == before + 1


def test_generating_health_check_tells_a_failing_engine(slow: Served):
    slow.engine.fail_after = 0
    response = slow.http.get("/health_generate")
    assert response.status_code == 503 and "Boom" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/abort_request"])
def test_dangerous_endpoints_need_the_key(guarded: Served, path):
    body = {"abort_all": True}
    assert guarded.http.post(path, json=body).status_code == 401
    headers = {"Authorization": "Bearer secret"}
    assert guarded.http.post(path, json=body, headers=headers).status_code == 200
    assert guarded.http.get("/openapi.json").status_code == 401


def test_description_names_every_route(served: Served):
    paths = served.http.get("/openapi.json").json()["paths"]
    for route in served.server.config.app.routes:  # type: ignore[union-attr]
        named = paths[route.path.replace(":path", "")]
        assert {method.lower() for method in route.methods - {"HEAD"}} == set(named)


def test_streams_are_described_without_a_schema(served: Served):
    paths = served.http.get("/openapi.json").json()["paths"]
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses"):
        content = paths[path]["post"]["responses"]["200"]["content"]
        assert content["text/event-stream"] == {}
        assert content["application/json"] == {"schema": {"type": "object"}}


def test_text_to_tokenise_has_a_limit(served: Served):
    assert served.refused("/tokenize", prompt="x" * (1 << 23))["param"] == "prompt"
    assert served.refused("/tokenize", prompt="a", messages=[])["param"] == "messages"
