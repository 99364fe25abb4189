"""Bodies that are not what they should be; errors outside the fields."""

import json
import socket
import time

import pytest
from served_engine import Served

COMPLETIONS = "/v1/completions"
JSON = {"Content-Type": "application/json"}
BROKEN = [
    b"", b"{", b"[]", b"null", b'"x"', b"{'a':1}", b"\xff\xfe", b'{"model":"\xff"}', b"[" * 100_000,
    b'{"prompt":' * 50_000, b'{"prompt":"a","temperature":NaN}', b'{"seed":' + b"9" * 5000 + b"}",
    b'{"prompt":"a","temperature":Infinity}', b'\xef\xbb\xbf{}',
]  # fmt: skip


def error_of(response, status=400):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == status and len(error["message"]) < 300
    return error


@pytest.mark.parametrize("raw", BROKEN, ids=lambda raw: ascii(raw[:20]))
@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/chat/completions", "/tokenize"])
def test_broken_body_is_refused(served: Served, path, raw):
    assert error_of(served.http.post(path, content=raw, headers=JSON))["param"]


def test_number_beyond_floats_is_refused(served: Served):
    raw = b'{"prompt":"a","temperature":1e400}'
    response = served.http.post(COMPLETIONS, content=raw, headers=JSON)
    assert error_of(response)["param"] == "temperature"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_other_content_types_are_refused(served: Served, kind):
    response = served.http.post(COMPLETIONS, content=b"{}", headers={"Content-Type": kind})
    assert error_of(response)["param"] == "Content-Type"


def test_parameters_of_the_content_type_are_ignored(served: Served):
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    raw = b'{"prompt":"a","max_tokens":1}'
    assert served.http.post(COMPLETIONS, content=raw, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "body, param",
    [
        ({"prompt": "HALF"}, "prompt"),
        ({"prompt": ["a", "b HALF"]}, "prompt"),
        ({"prompt": "a", "stop": ["HALF"]}, "stop"),
        ({"prompt": "a", "user": "HALF"}, "user"),
        ({"prompt": "a", "model": "HALF"}, "model"),
        ({"prompt": "a", "metadata": {"HALF": 1}}, "metadata"),
        ({"prompt": "a", "HALF": 1}, r"\ud83d"),
    ],
)
def test_half_a_surrogate_pair_is_named(served: Served, body, param):
    raw = json.dumps(body).replace("HALF", r"\ud83d").encode()
    found = error_of(served.http.post(COMPLETIONS, content=raw, headers=JSON))["param"]
    assert param in found


def test_escaped_surrogate_pair_is_its_character(served: Served):
    raw = rb'{"prompt":"\ud83d\ude00","max_tokens":4}'
    response = served.http.post(COMPLETIONS, content=raw, headers=JSON)
    assert response.json()["choices"][0]["text"] == "😀"


@pytest.mark.parametrize("announced", [True, False])
def test_huge_body_is_refused_without_being_kept(served: Served, announced):
    raw = b'{"prompt":"' + b"x" * (33 << 20) + b'"}'
    content = raw if announced else iter([raw])
    response = served.http.post(COMPLETIONS, content=content, headers=JSON)
    assert error_of(response, 413)["type"] == "RequestTooLargeError"
    assert served.complete("ab", max_tokens=2)["choices"][0]["text"] == "ab"


def test_unknown_route_and_wrong_method_have_the_error_shape(served: Served):
    assert error_of(served.http.get("/v1/nowhere"), 404)["type"] == "NotFoundError"
    response = served.http.get(COMPLETIONS)
    assert error_of(response, 405)["type"] == "MethodNotAllowedError"
    assert response.headers["allow"] == "POST"
    error_of(served.http.delete("/v1/models"), 405)
    error_of(served.http.get("/" + "x" * 5000), 404)


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_unknown_model_is_404_and_names_the_served(served: Served, path):
    error = served.refused(path, 404, model="nobody", prompt="a")
    assert error["param"] == "model" and error["type"] == "NotFoundError"
    assert "nobody" in error["message"] and "fake, alias" in error["message"]


def test_own_faults_are_500_without_details(slow: Served, caplog):
    slow.engine.check = None  # type: ignore[assignment]
    error = slow.refused(COMPLETIONS, 500, prompt="a")
    assert "NoneType" not in error["message"] and "NoneType" in caplog.text


def test_a_client_that_leaves_while_its_body_is_read_is_no_failure(served: Served, caplog):
    head = "POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    address = (served.http.base_url.host, served.http.base_url.port)
    with socket.create_connection(address) as connection:
        connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
    counted = 'handler="/v1/responses",method="POST",status="'
    for _ in range(500):
        if counted in (text := served.http.get("/metrics").text):
            break
        time.sleep(0.01)

    assert counted + '4xx"' in text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
