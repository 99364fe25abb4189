"""What nobody can do to the server from outside; server/README.md lists what stands elsewhere."""

import ast
import dataclasses
import json
import re
import socket
import time
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from served_engine import SETTINGS, Served, eventually, serve

from paged_jax.flags import parse
from paged_jax.serve import settings_of
from server import connection, fields

ROOT = Path(__file__).parents[2]
PACKAGES = ("paged_jax", "server", "pallas_kernels")
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LONG = {"prompt": "ab", "max_tokens": 500, "stream": True}


def settings_served(step_s: float = 0.0, **changes):
    yield from serve(FakeEngine(step_s=step_s), dataclasses.replace(SETTINGS, **changes))


# ---- the code ----------------------------------------------------------------------------------


def names_called_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {ast.unparse(name) for name in called}


def test_nothing_is_unpickled_or_evaluated():
    """Checklist 1, 2, 3, 21: neither sockets, files, requests nor answers become code."""
    banned = {
        "eval",
        "exec",
        "compile",
        "pickle.load",
        "pickle.loads",
        "marshal.loads",
        "__import__",
    }
    unsafe = re.compile(r"allow_pickle=True|import (pickle|marshal|shelve|dill|cloudpickle)")
    for path in (path for name in PACKAGES for path in (ROOT / name).rglob("*.py")):
        assert not names_called_in(path) & banned, path
        assert not unsafe.search(path.read_text()), path


# ---- requests ----------------------------------------------------------------------------------

UNBOUNDED = [
    # line of the checklist, path, body, field
    (3, COMPLETIONS, {"logits_processors": ["x"]}, "logits_processors"),
    (11, COMPLETIONS, {"n": 2**62}, "n"),
    (11, COMPLETIONS, {"best_of": 5}, "best_of"),
    (12, COMPLETIONS, {"n": True}, "n"),
    (12, COMPLETIONS, {"max_tokens": -1}, "max_tokens"),
    (13, COMPLETIONS, {"prompt": [-1]}, "prompt"),
    (13, COMPLETIONS, {"prompt": [257]}, "prompt"),
    (13, COMPLETIONS, {"logit_bias": {"-1": 1}}, "logit_bias"),
    (13, COMPLETIONS, {"logit_bias": {str(i): 1 for i in range(10**5)}}, "logit_bias"),
    (14, COMPLETIONS, {"prompt_embeds": "AAAA"}, "prompt_embeds"),
    (15, CHAT, {"chat_template": "{{ 1 }}"}, "chat_template"),
    (17, COMPLETIONS, {"prompt": ""}, "prompt"),
    (17, COMPLETIONS, {"prompt": [[]]}, "prompt"),
    (17, COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
    (22, COMPLETIONS, {"stop": ["x"] * 1000}, "stop"),
    (22, COMPLETIONS, {"stop": "x" * 10**6}, "stop"),
    (22, COMPLETIONS, {"logprobs": 10**9}, "logprobs"),
    (22, COMPLETIONS, {"prompt": ["a"] * 10_000}, "prompt"),
    (22, CHAT, {"messages": [{"role": "user", "content": "a"}] * 5000}, "messages"),
    (22, CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}] * 129}, "tools"),
    (29, CHAT, {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}]}]}, "messages"),
]  # fmt: skip


@pytest.mark.parametrize(
    "line, path, body, param", UNBOUNDED, ids=lambda value: str(value) if type(value) is int else ""
)
def test_request_without_bounds_is_refused_by_name(served: Served, line, path, body, param):
    given = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]} | body
    start = time.monotonic()
    assert served.refused(path, **given)["param"] == param
    assert time.monotonic() - start < 5 and not served.engine.running


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..%2f..%2fetc", "a\x00b"])
def test_name_of_a_model_is_no_path(served: Served, name):
    """Checklist 10."""
    error = served.refused(COMPLETIONS, 404, prompt="a", model=name)
    assert "root:" not in error["message"]
    assert served.http.get("/v1/models/" + name.replace("\x00", "%00")).status_code == 404


def test_deep_body_is_refused(served: Served):
    """Checklist 22: a depth that Python could read, but nobody needs."""
    deep = json.loads("[" * 200 + "]" * 200)
    for path in (COMPLETIONS, CHAT, "/tokenize"):
        assert "nested" in served.refused(path, metadata=deep, tools=deep)["message"]
    shallow = json.loads("[" * 100 + "]" * 100)
    assert served.complete("ab", max_tokens=1, metadata={"a": shallow})


# ---- transport ---------------------------------------------------------------------------------


def speak(served: Served, raw: bytes, *, timeout: float = 10) -> bytes:
    """Send bytes and return what comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", served.http.base_url.port), timeout) as client:
        client.sendall(raw)
        answer = b""
        while part := client.recv(1 << 16):
            answer += part
        return answer


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""], ids=["whole", "endless"])
@pytest.mark.parametrize(
    "head", [b"X: " + b"x" * (1 << 19), b"X: y\r\n" * 30_000], ids=["long", "many"]
)
def test_head_has_a_size(served: Served, head, end):
    """Checklist 23."""
    raw = b"GET /health HTTP/1.1\r\nHost: a\r\n" + head + end
    try:
        assert speak(served, raw).startswith(b"HTTP/1.1 431")
    except ConnectionResetError:
        pass  # it may close before it has read all that was sent
    assert served.http.get("/health").status_code == 200


def test_head_has_a_time(monkeypatch, slow: Served):
    """Checklist 23."""
    monkeypatch.setattr(connection, "HEAD_S", 0.2)
    assert speak(slow, b"GET /health HTTP/1.1\r\nX-Slow") == b""
    assert speak(slow, b"") == b""


def test_body_has_a_time(monkeypatch, slow: Served):
    """Checklist 23."""
    monkeypatch.setattr(fields, "BODY_S", 0.2)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    assert speak(slow, head).startswith(b"HTTP/1.1 408")


def test_reader_that_stalls_is_dropped(monkeypatch, slow: Served):
    """Checklist 23 and 28: a token of 128 choices with 20 alternatives is about 80 kB."""
    monkeypatch.setattr(connection, "STALLED_S", 0.3)
    body = LONG | {"n": 128, "logprobs": 20}
    raw = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", slow.http.base_url.port)) as client:
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
        assert eventually(lambda: len(slow.engine.aborted) == 1)


@pytest.fixture(scope="module")
def local():
    yield from settings_served(allowed_hosts=("localhost", "127.0.0.1"), api_keys=("secret",))


@pytest.mark.parametrize(
    "header",
    [{"Host": "evil.example"}, {"Host": "127.0.0.1.evil.example:8000"}, {"Host": ""},
     {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"}],
    ids=str,
)  # fmt: skip
def test_pages_of_other_sites_are_refused(local: Served, header):
    """Checklist 26: cross-site requests, and names made to resolve to this machine."""
    key = {"Authorization": "Bearer secret"}
    response = local.http.post("/reset_prefix_cache", headers=key | header)
    assert response.status_code == 403 and "evil" not in response.headers.values()
    assert not any("access-control" in name for name in response.headers)


@pytest.mark.parametrize("origin", [None, "own"])
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9", "LOCALHOST:80"])
def test_own_pages_are_served(local: Served, host, origin):
    headers = {"Host": host} | ({"Origin": f"http://{host.lower()}"} if origin else {})
    assert local.http.get("/health", headers=headers).status_code == 200


def test_key_is_compared_by_digest_and_is_no_header_of_an_answer(local: Served):
    """Checklist 24."""
    for key in ("secre", "secretX", "secret\u00e9".encode().decode("latin-1"), "x" * 10_000):
        headers = {"Authorization": b"Bearer " + key.encode("latin-1")}
        response = local.http.get("/v1/models", headers=headers)
        assert response.status_code == 401 and "secret" not in response.text
    assert "compare_digest" in (ROOT / "server/gate.py").read_text()


OPEN = {"/", "/page/{name}", "/health", "/livez", "/ping", "/version", "/metrics"}


def test_every_route_but_the_listed_needs_the_key(local: Served):
    """Checklist 25."""
    routes = [route.path for route in local.server.config.app.routes]  # type: ignore[union-attr]
    assert len(routes) > 15
    for path in routes:
        status = local.http.get(path.replace("{name:path}", "x")).status_code
        assert (status == 401) == (path not in OPEN), path


# ---- cache and operations ----------------------------------------------------------------------


@pytest.fixture
def tenants():
    yield from settings_served(api_keys=("one", "two"), isolates_keys=True)


def test_keys_can_have_caches_of_their_own(tenants: Served):
    """Checklist 31."""
    for key in ("one", "one", "two"):
        for salt in ({}, {"cache_salt": "s"}):
            headers = {"Authorization": f"Bearer {key}"}
            tenants.http.post(COMPLETIONS, json={"prompt": "a"} | salt, headers=headers)
    salts = [salt for _, _, salt in tenants.engine.asked]
    assert salts[:2] == salts[2:4] and len(set(salts)) == 4 and None not in salts


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_public_address_needs_a_key_or_a_word(host, capsys, monkeypatch):
    """Checklist 35."""
    monkeypatch.delenv("PAGED_JAX_API_KEY", raising=False)
    with pytest.raises(SystemExit):
        parse(["--host", host])
    assert host in capsys.readouterr().err
    for words in (["--api-key", "k"], ["--allow-no-key"]):
        options, _ = parse(["--host", host, *words])
        assert not settings_of(FakeEngine(), with_platform(options)).allowed_hosts
    options, _ = parse([])
    assert "localhost" in settings_of(FakeEngine(), with_platform(options)).allowed_hosts


def with_platform(options):
    options.platform = "CPU"
    return options


@pytest.fixture
def full():
    yield from settings_served(0.01, max_requests=2)


def test_full_queue_is_429_with_a_time(full: Served):
    """Checklist 38."""
    with full.http.stream("POST", COMPLETIONS, json=LONG):
        with full.http.stream("POST", COMPLETIONS, json=LONG):
            assert eventually(lambda: len(full.engine.running) == 2)
            response = full.post(COMPLETIONS, prompt="a")
            assert response.status_code == 429 and int(response.headers["retry-after"]) > 0
            assert response.json()["error"]["type"] == "RateLimitError"
        assert eventually(lambda: full.http.get("/load").json() == {"server_load": 1})
        assert full.post(COMPLETIONS, prompt=["a", "b"]).status_code == 429
    assert eventually(lambda: not full.engine.running)
    assert full.post(COMPLETIONS, prompt=["a", "b", "c"]).status_code == 200
    assert 'reason="queue_full"} 2.0' in full.http.get("/metrics").text


@pytest.fixture
def hasty():
    yield from settings_served(0.01, request_timeout_s=0.2)


@pytest.mark.parametrize("prompt", ["ab", ["ab", "cd"]], ids=["one", "two"])
def test_request_has_a_deadline(hasty: Served, prompt):
    """Checklist 38."""
    assert "0.2 s" in hasty.refused(COMPLETIONS, 408, prompt=prompt, max_tokens=500)["message"]
    *_, last = hasty.stream(prompt, max_tokens=500)
    assert last["error"]["code"] == 408
    assert hasty.complete(prompt, max_tokens=2) and not hasty.engine.running


def test_stuck_step_turns_health_red_until_it_moves(slow: Served):
    """Checklist 40; the figure itself is tested with the real engine."""
    slow.engine.busy_s = 121.0
    for path in ("/health", "/ping", "/livez"):
        assert slow.http.get(path).status_code == 503
    error = slow.post(COMPLETIONS, prompt="a")
    assert "no progress" in error.json()["error"]["message"] and error.headers["retry-after"]
    slow.engine.busy_s = 0.0
    assert slow.http.get("/health").status_code == 200


def test_draining_is_not_ready_but_alive(slow: Served):
    """Checklist 39: a supervisor must not end what is being drained."""
    slow.engine.is_draining = True
    assert slow.http.get("/health").status_code == 503
    assert slow.http.get("/livez").status_code == 200
