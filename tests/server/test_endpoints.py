"""The small endpoints and the API key."""

import dataclasses

import pytest
from fake_engine import FakeEngine
from served_engine import SETTINGS, Served, eventually, serve


@pytest.fixture(scope="module")
def guarded():
    settings = dataclasses.replace(SETTINGS, api_keys=("secret", "other"))
    yield from serve(FakeEngine(), settings)


def test_health_is_empty_and_200(served: Served):
    for response in (
        served.http.get("/health"),
        served.http.get("/ping"),
        served.http.post("/ping"),
    ):
        assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("state", [{"is_healthy": False}, {"is_draining": True}], ids=str)
def test_health_and_new_requests_are_503_when_not_ready(slow: Served, state):
    vars(slow.engine).update(state)
    assert slow.http.get("/health").status_code == slow.http.get("/ping").status_code == 503
    for path in ("/v1/completions", "/v1/chat/completions"):
        assert slow.refused(path, 503, prompt="a")["type"] == "ServiceUnavailableError"


def test_version(served: Served):
    assert served.http.get("/version").json() == {"version": "1.2.3"}


def test_models_lists_every_name_and_the_limit(served: Served):
    body = served.http.get("/v1/models").json()
    assert [card["id"] for card in body["data"]] == ["fake", "alias"] and body["object"] == "list"
    card = served.http.get("/v1/models/alias").json()
    assert card["object"] == "model" and card["max_model_len"] == 512 and card["owned_by"]
    assert served.http.get("/v1/models/a/b").json()["error"]["code"] == 404


def test_load_counts_requests_in_flight(slow: Served):
    body = {"prompt": "ab", "max_tokens": 500, "stream": True}
    with slow.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        assert slow.http.get("/load").json() == {"server_load": 1}
    assert eventually(lambda: slow.http.get("/load").json() == {"server_load": 0})


@pytest.mark.parametrize("text", ["Hello", "", "é😀", "a<|end|>b"])
def test_tokenize_and_back(served: Served, text):
    body = served.post("/tokenize", prompt=text).json()
    assert body["count"] == len(body["tokens"]) and body["max_model_len"] == 512
    assert body["token_strs"] is None
    assert served.post("/detokenize", tokens=body["tokens"]).json() == {"prompt": text}


def test_tokenize_shows_token_texts(served: Served):
    body = served.post("/tokenize", prompt="a<|end|>", return_token_strs=True).json()
    assert body["tokens"] == [97, 256] and body["token_strs"] == ["a", "<|end|>"]


def test_tokenize_of_messages_equals_chat(served: Served):
    messages = [{"role": "user", "content": "Hi"}]
    body = served.post("/tokenize", messages=messages).json()
    usage = served.chat("Hi", max_tokens=1)["usage"]
    assert body["count"] == usage["prompt_tokens"]
    shorter = served.post("/tokenize", messages=messages, add_generation_prompt=False).json()
    assert shorter["tokens"] == list(b"user:Hi;")


@pytest.mark.parametrize("tokens", [None, [-1], ["x"], "x", [257], [2**70], [True]], ids=str)
def test_detokenize_refuses_what_is_no_token(served: Served, tokens):
    assert served.refused("/detokenize", tokens=tokens)["param"] == "tokens"


def test_tokenize_needs_a_text(served: Served):
    assert served.refused("/tokenize")["param"] == "prompt"
    assert served.refused("/tokenize", prompt=[1])["param"] == "prompt"


@pytest.mark.parametrize("header", ["Bearer secret", "bearer other", "BEARER  secret"])
def test_any_key_opens(guarded: Served, header):
    headers = {"Authorization": header}
    assert guarded.http.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("header", [None, "", "secret", "Bearer", "Bearer wrong", "Basic secret"])
@pytest.mark.parametrize("path", ["/v1/models", "/tokenize", "/load", "/nowhere"])
def test_everything_else_is_guarded(guarded: Served, header, path):
    headers = {} if header is None else {"Authorization": header}
    response = guarded.http.get(path, headers=headers)
    assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["type"] == "AuthenticationError"


@pytest.mark.parametrize("path", ["/health", "/ping", "/version", "/metrics"])
def test_probes_need_no_key(guarded: Served, path):
    assert guarded.http.get(path).status_code == 200


def test_options_needs_no_key(guarded: Served):
    assert guarded.http.options("/v1/models").status_code == 405


@pytest.mark.parametrize(
    "path, field, prefix",
    [("/v1/completions", "prompt", "cmpl-"), ("/v1/responses", "input", "resp_")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_request_id_is_repeated_in_every_kind_of_answer(
    served: Served, path, field, prefix, stream
):
    body = {field: "a", "stream": stream}
    given = served.http.post(path, json=body, headers={"X-Request-Id": "mine"})
    assert given.headers["x-request-id"] == "mine" and f"{prefix}mine" in given.text
    own = served.post(path, request_id="own", **body)
    assert own.headers["x-request-id"] == "own"
    drawn = served.post(path, **body).headers["x-request-id"]
    assert len(drawn) == 32 and drawn != served.post(path, **body).headers["x-request-id"]


def test_refusals_and_small_answers_have_a_request_id_too(served: Served, guarded: Served):
    headers = {"X-Request-Id": "mine"}
    for response in (
        served.http.get("/health", headers=headers),
        served.http.get("/nowhere", headers=headers),
        served.http.post("/v1/completions", json={}, headers=headers),
        guarded.http.get("/load", headers=headers),
    ):
        assert response.headers["x-request-id"] == "mine"
    unfit = served.http.get("/health", headers={"X-Request-Id": "a b"})
    assert len(unfit.headers["x-request-id"]) == 32
