"""A client that hangs up ends its work; one that stops reading holds up nothing."""

import json
import socket
import time

import httpx
import pytest
from served_engine import Served, eventually

PATHS = {
    "/v1/completions": {"prompt": "ab"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", PATHS)
def test_closed_connection_aborts(slow: Served, path, stream):
    body = PATHS[path] | {"max_tokens": 400, "stream": stream}
    with pytest.raises(httpx.ReadTimeout):
        with slow.http.stream("POST", path, json=body, timeout=0.2):
            assert stream and eventually(lambda: slow.engine.running)
            raise httpx.ReadTimeout("enough")
    assert eventually(lambda: not slow.engine.running)
    assert len(slow.engine.aborted) == 1
    slow.complete("ab", max_tokens=1)


def test_closed_connection_aborts_every_prompt(slow: Served):
    body = {"prompt": ["ab", "cd", "ef"], "max_tokens": 400, "stream": True}
    with slow.http.stream("POST", "/v1/completions", json=body):
        assert eventually(lambda: len(slow.engine.running) == 3)
    assert eventually(lambda: not slow.engine.running)
    assert len(slow.engine.aborted) == 3


def test_connection_closed_before_the_first_token_aborts(slow: Served):
    slow.engine.step_s = 60
    with pytest.raises(httpx.ReadTimeout):
        slow.http.post("/v1/completions", json={"prompt": "ab"}, timeout=0.2)
    assert eventually(lambda: len(slow.engine.aborted) == 1)


def test_reader_that_stops_is_not_served_on_and_its_end_is_noticed(slow: Served):
    """A token of 128 choices with 20 alternatives is about 80 kB: 400 overflow the sockets."""
    body = {"prompt": "ab", "n": 128, "logprobs": 20, "stream": True, "max_tokens": 400}
    connection = ask_without_reading(slow, body)
    assert eventually(lambda: slow.engine.num_yielded > 0)
    taken = -1
    while taken != slow.engine.num_yielded:
        taken = slow.engine.num_yielded
        time.sleep(0.3)
    assert taken < 400, "the server went on taking answers nobody reads"
    slow.complete("ab", max_tokens=1)
    connection.close()
    assert eventually(lambda: not slow.engine.running)


def ask_without_reading(slow: Served, body) -> socket.socket:
    raw = json.dumps(body).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    connection.connect(("127.0.0.1", slow.http.base_url.port))
    head = [
        "POST /v1/completions HTTP/1.1",
        "Host: test",
        "Content-Type: application/json",
        f"Content-Length: {len(raw)}",
    ]
    connection.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + raw)
    return connection
