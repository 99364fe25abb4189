"""Spans: what one tells, whom it belongs to, and that OpenTelemetry is needed only for them."""

import dataclasses
import time

import pytest
from fake_engine import FakeEngine
from served_engine import SETTINGS, Served, eventually, serve

from paged_jax import flags
from server import tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch):
    """What a server of its own has sent, and the server."""
    sent = []
    monkeypatch.setattr("server.app.open_traces", lambda _url: tracing.Traces(sink=collect(sent)))
    settings = dataclasses.replace(SETTINGS, traces_endpoint="http://collector:4317")
    served = serve(FakeEngine(step_s=0.01), settings)
    yield sent, next(served)
    next(served, None)


def collect(sent):
    return lambda parent, start_ns, end_ns, facts: sent.append((parent, start_ns, end_ns, facts))


def test_a_span_tells_of_sizes_and_times_and_of_no_text(spans):
    sent, served = spans
    before_ns = time.time_ns()
    served.complete("abc", max_tokens=2, temperature=0.5, request_id="mine")
    (parent, start_ns, end_ns, facts) = sent.pop()
    assert parent == {} and start_ns < end_ns and abs(end_ns - before_ns) < 60e9
    assert facts["gen_ai.request.id"] == "cmpl-mine" and facts["gen_ai.request.max_tokens"] == 2
    assert facts["gen_ai.usage.prompt_tokens"] == 3 and facts["gen_ai.request.temperature"] == 0.5
    assert facts["gen_ai.latency.time_in_queue"] == 1.0  # as the fake engine has it
    assert facts["gen_ai.latency.time_in_model_decode"] == 6.0
    assert facts["gen_ai.usage.completion_tokens"] == 2
    assert "abc" not in str(facts)


def test_every_prompt_has_a_span_in_the_client_s_trace(spans):
    sent, served = spans
    body = {"prompt": ["ab", "c"], "max_tokens": 1}
    served.http.post("/v1/completions", json=body, headers={"traceparent": PARENT})
    assert [parent for parent, *_ in sent] == [{"traceparent": PARENT}] * 2
    counts = {facts["gen_ai.usage.prompt_tokens"] for *_, facts in sent}
    assert counts == {1, 2}


def test_a_client_that_leaves_has_a_span_without_stages(spans: tuple[list, Served]):
    sent, served = spans
    body = {"prompt": "ab", "max_tokens": 500, "stream": True}
    with served.http.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
    assert eventually(lambda: bool(sent))
    assert "gen_ai.latency.e2e" in sent[0][-1]
    assert "gen_ai.latency.time_in_queue" not in sent[0][-1]


def test_spans_without_opentelemetry_are_a_wrong_option(monkeypatch, capsys):
    monkeypatch.setattr(flags, "find_spec", lambda _name: None)
    with pytest.raises(SystemExit) as caught:
        flags.parse(["--otlp-traces-endpoint", "http://127.0.0.1:4317"])
    assert caught.value.code == 2 and "paged_jax[traces]" in capsys.readouterr().err


def test_spans_reach_opentelemetry_under_their_parent():
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    tracing.otel_sink(provider)({"traceparent": PARENT}, 10, 20, {"gen_ai.request.n": 3})
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.start_time, span.end_time) == ("llm_request", 10, 20)
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    assert dict(span.attributes) == {"gen_ai.request.n": 3}
