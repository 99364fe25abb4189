"""Log lines: their two forms, what is told of requests, and what never is."""

import json
import logging
import socket
import sys
from dataclasses import replace

import pytest
from fake_engine import FakeEngine
from served_engine import SETTINGS, Served, serve

from paged_jax.log_format import JsonFormatter, configure_logging
from server.load_log import RequestLog


def make_record(message: str, *args, **extra) -> logging.LogRecord:
    record = logging.LogRecord("paged_jax", logging.INFO, "f", 1, message, args, None)
    vars(record).update(extra)
    return record


def test_json_lines_are_objects_with_the_fields_beside_the_message():
    record = make_record("a %s", "b\nc", fields={"request_id": "r"})
    told = json.loads(JsonFormatter().format(record))
    assert told.pop("time").endswith("Z")
    assert told == {"level": "info", "logger": "paged_jax", "message": "a b\nc", "request_id": "r"}


def test_json_lines_hold_the_traceback():
    try:
        raise KeyError("boom")
    except KeyError:
        told = json.loads(JsonFormatter().format(make_record("x", exc_info=sys.exc_info())))
    assert "KeyError: 'boom'" in told["traceback"]


@pytest.mark.parametrize("kind", ["text", "json"])
def test_a_client_s_text_begins_no_line(kind, capsys, monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])
    configure_logging(kind, "info")
    logging.getLogger("paged_jax").info("id %s", "x\r\nERROR forged")
    first, *others = capsys.readouterr().err.splitlines()
    assert "forged" not in first or kind == "json"
    assert all(line.startswith("  ") for line in others)


@pytest.fixture
def logged():
    yield from serve(FakeEngine(), replace(SETTINGS, logs_requests=True))


def test_ended_requests_are_logged_without_their_text(logged: Served, caplog):
    caplog.set_level("DEBUG", "paged_jax")
    logged.complete("secret words", max_tokens=3, request_id="mine")
    (line,) = [record.getMessage() for record in caplog.records if "ended" in record.getMessage()]
    assert "request_id=cmpl-mine-0-" in line and "prompt_tokens=12" in line
    assert "finish_reasons=length" in line and "seconds=10" in line
    assert "secret" not in caplog.text


def test_requests_are_not_logged_by_default(served: Served, caplog):
    caplog.set_level("DEBUG", "paged_jax")
    served.complete("secret words", max_tokens=3)
    served.chat("secret words", max_tokens=3)
    assert "secret" not in caplog.text and "ended" not in caplog.text
    assert not any(isinstance(o, RequestLog) for o in served.engine._observers)


@pytest.mark.parametrize("code", [0x00, 0x09, 0x0A, 0x0B, 0x0D, 0x1B, 0x7F, 0x85, 0x9B])
@pytest.mark.parametrize("method, path", [("POST", "/v1/completions"), ("GET", "/health")])
def test_a_request_id_of_control_characters_is_repeated_nowhere(
    logged: Served, caplog, method, path, code
):
    caplog.set_level("DEBUG")
    body, unfit = b'{"prompt": "a", "max_tokens": 1}', b"forged" + bytes([code]) + b"id"
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    head += f"Content-Length: {len(body)}\r\nX-Request-Id: "
    with socket.create_connection(("127.0.0.1", logged.http.base_url.port), 30) as client:
        client.sendall(head.encode() + unfit + b"\r\n\r\n" + body)
        answer = client.makefile("rb").read()
    assert method == "GET" or answer.startswith(b"HTTP/1.1 400 ")
    assert b"forged" not in answer.partition(b"\r\n\r\n")[0] and unfit not in answer
    assert "forged" not in caplog.text
