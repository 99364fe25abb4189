"""OpenTelemetry: one span for each prompt that was answered, under vLLM's names; never a text.

The packages of OpenTelemetry are needed only where `open_traces` is called.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from paged_jax.outputs import RequestMetrics
from server.call import Call

PARENTS = ("traceparent", "tracestate")  # headers that say which trace a request belongs to
PROTOCOL_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"


class SpanSink(Protocol):
    """Takes spans. Times are Unix nanoseconds."""

    def __call__(
        self, parent: Mapping[str, str], start_ns: int, end_ns: int, facts: Mapping[str, Any]
    ) -> None:
        """Send a span on; must not wait."""
        ...


@dataclass(frozen=True)
class Traces:
    """Makes the spans."""

    sink: SpanSink

    def note(self, call: Call, number: int, start_s: float, metrics: RequestMetrics | None) -> None:
        """Send the span of prompt `number` of a call, which ends now.

        Args:
            start_s: when the server had read it, on the monotonic clock.
            metrics: the engine's; None if the client left or the engine failed.
        """
        end_s = time.monotonic()
        start_s = metrics.arrival_time if metrics else start_s
        facts = {
            "gen_ai.response.model": call.model,
            "gen_ai.request.id": call.id,
            "gen_ai.request.temperature": call.params.temperature,
            "gen_ai.request.top_p": call.params.top_p,
            "gen_ai.request.n": call.params.n,
            "gen_ai.usage.num_sequences": call.params.n,
            "gen_ai.usage.prompt_tokens": len(call.prompts[number].ids),
            "gen_ai.latency.e2e": end_s - start_s,
        }
        if call.params.max_tokens is not None:
            facts["gen_ai.request.max_tokens"] = call.params.max_tokens
        to_unix_s = time.time() - time.monotonic()
        start_ns, end_ns = (int((to_unix_s + second) * 1e9) for second in (start_s, end_s))
        self.sink(call.trace, start_ns, end_ns, facts | (_stages(metrics) if metrics else {}))


def _stages(metrics: RequestMetrics) -> dict[str, Any]:
    """Return the seconds of each stage and the tokens made; what was not reached is absent."""
    arrival, scheduled = metrics.arrival_time, metrics.first_scheduled_time
    first, last = metrics.first_token_time, metrics.last_token_time
    spans = {
        "time_in_queue": (arrival, scheduled),
        "time_to_first_token": (arrival, first),
        "time_in_model_prefill": (scheduled, first),
        "time_in_model_decode": (first, last),
        "time_in_model_inference": (scheduled, last),
    }
    times = {
        f"gen_ai.latency.{name}": end - start
        for name, (start, end) in spans.items()
        if start is not None and end is not None
    }
    return times | {"gen_ai.usage.completion_tokens": metrics.num_generation_tokens}


def open_traces(endpoint: str) -> Traces:
    """Return traces that go to a collector, by gRPC or, if the environment says so, by HTTP."""
    provider = import_module("opentelemetry.sdk.trace").TracerProvider()
    export = import_module("opentelemetry.sdk.trace.export")
    kind = "grpc" if os.environ.get(PROTOCOL_VARIABLE, "grpc") == "grpc" else "http"
    otlp = import_module(f"opentelemetry.exporter.otlp.proto.{kind}.trace_exporter")
    exporter = otlp.OTLPSpanExporter(endpoint=endpoint)
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return Traces(otel_sink(provider))


def otel_sink(provider: Any) -> SpanSink:
    """Return a sink whose spans go to an OpenTelemetry TracerProvider."""
    kinds = import_module("opentelemetry.trace").SpanKind
    contexts = import_module("opentelemetry.trace.propagation.tracecontext")
    tracer, propagator = provider.get_tracer("paged_jax"), contexts.TraceContextTextMapPropagator()

    def send(
        parent: Mapping[str, str], start_ns: int, end_ns: int, facts: Mapping[str, Any]
    ) -> None:
        span = tracer.start_span(
            "llm_request",
            context=propagator.extract(dict(parent)),
            kind=kinds.SERVER,
            start_time=start_ns,
            attributes=dict(facts),
        )
        span.end(end_time=end_ns)

    return send
