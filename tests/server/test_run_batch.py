"""python -m paged_jax.run_batch over a FakeEngine: one line out for each line in."""

import json

import pytest
from fake_engine import FakeEngine

from paged_jax import run_batch

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a batch of lines; returns the exit code and the lines of output by custom_id."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"

    def run(lines, *flags, fail_after=10**9):
        engine = FakeEngine()
        engine.fail_after = fail_after
        monkeypatch.setattr(run_batch, "load", lambda _args: (engine, "CPU"))
        rows = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in lines]
        source.write_bytes(b"\n".join(rows) + b"\n")
        code = run_batch.main(["-i", str(source), "-o", str(target), *flags])
        written = [json.loads(line) for line in target.read_text().splitlines()]
        return code, {line["custom_id"]: line for line in written}, len(engine.asked)

    run.target = target
    return run


def line(custom_id, url=CHAT, body=BODY, **fields):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **fields}


def test_every_endpoint_answers_as_the_server_does(run):
    lines = [
        line("chat"),
        line("text", "/v1/completions", {"prompt": "ab", "max_tokens": 2}),
        line("response", "/v1/responses", {"input": "Hi", "max_output_tokens": 4}),
    ]
    code, out, _ = run(lines)
    bodies = {name: row["response"]["body"] for name, row in out.items()}
    assert code == 0 and all(row["error"] is None for row in out.values())
    assert bodies["chat"]["choices"][0]["message"]["content"] == "user"
    assert bodies["text"]["choices"][0]["text"] == "ab"
    assert bodies["response"]["output"][0]["content"][0]["text"] == "user"
    assert {row["response"]["status_code"] for row in out.values()} == {200}


def test_refused_request_is_told_in_its_line(run):
    code, out, _ = run([line("bad", body=BODY | {"temperature": 9}), line("good")])
    response = out["bad"]["response"]
    assert code == 0 and response["status_code"] == 400
    assert response["body"]["error"]["param"] == "temperature"
    assert out["good"]["response"]["status_code"] == 200


@pytest.mark.parametrize(
    "bad, code",
    [
        (b"{", "invalid_line"),
        (b"\xff", "invalid_line"),
        (b"[" * 100_000, "invalid_line"),
        (b"[]", "invalid_custom_id"),
        ({"url": CHAT, "body": BODY}, "invalid_custom_id"),
        (line("x", "/v1/models"), "invalid_url"),
        (line("x", method="GET"), "invalid_method"),
        (line("x", body=BODY | {"stream": True}), "invalid_body"),
        (line("good"), "duplicate_custom_id"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_line_that_is_no_request_stops_nothing(run, bad, code):
    ended, _, num_asked = run([line("good"), bad, b"", line("last")])
    rows = [json.loads(row) for row in run.target.read_text().splitlines()]
    (failed,) = [row for row in rows if row["error"] is not None]
    assert ended == 0 and failed["error"]["code"] == code and "line 2" in failed["error"]["message"]
    assert failed["response"] is None and len(rows) == 3 and num_asked == 2


@pytest.mark.parametrize("body", [None, 5, [], {}])
def test_body_is_refused_as_by_the_server(run, body):
    _, out, _ = run([line("x", body=body)])
    assert out["x"]["response"]["status_code"] == 400


def test_interrupted_run_goes_on_where_it_ended(run):
    run([line("a"), line("bad", body=BODY | {"n": 0})])
    with run.target.open("a") as out:
        out.write('{"custom_id": "b", "resp')  # the machine went down here
    code, out, num_asked = run([line("a"), line("bad", body={}), line("b"), line("c")])
    assert code == 0 and num_asked == 2
    assert set(out) == {"a", "bad", "b", "c"} and out["c"]["response"]["status_code"] == 200


def test_engine_that_fails_ends_the_run_and_its_lines_are_tried_again(run):
    lines = [line(str(number)) for number in range(40)]
    code, out, _ = run(lines, fail_after=2)
    assert code == 1 and {row["response"]["status_code"] for row in out.values()} <= {500, 503}
    code, out, num_asked = run(lines)
    assert code == 0 and len(out) == num_asked == 40
    assert {row["response"]["status_code"] for row in out.values()} == {200}


def test_files_are_checked_before_the_model_is_loaded(run, tmp_path, capsys):
    flags = ["-i", str(tmp_path / "missing"), "-o", str(tmp_path / "out")]
    assert run_batch.main(flags) == 2 and "missing" in capsys.readouterr().err
    same = tmp_path / "same"
    same.write_text("")
    assert run_batch.main(["-i", str(same), "-o", str(same)]) == 2
    with pytest.raises(SystemExit):
        run_batch.main(["-i", str(same)])


def test_flags_of_the_server_apply(run):
    code, out, _ = run([line("a", body=BODY | {"model": "mine"})], "--served-model-name", "mine")
    assert code == 0 and out["a"]["response"]["body"]["model"] == "mine"
