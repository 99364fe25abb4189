"""The report and the result file of `bench serve`, as vLLM's client writes them."""

import argparse
import math
import time
from collections.abc import Sequence

from paged_jax.bench.machine import machine_facts
from paged_jax.bench.metrics import Figures, Outcome
from paged_jax.bench.report import append_json, extra_rows, metric_rows, row, title, write_json


def serving_text(
    figures: Figures, options: argparse.Namespace, percentiles: Sequence[float]
) -> str:
    """Return the report; a failed request is never left out of it."""
    rows = [
        title("Serving Benchmark Result"),
        row("Successful requests:", figures["completed"]),
        row("Failed requests:", figures["failed"]),
    ]
    if options.max_concurrency is not None:
        rows.append(row("Maximum request concurrency:", options.max_concurrency))
    if not math.isinf(options.request_rate):
        rows.append(row("Request rate configured (RPS):", options.request_rate))
    rows += [
        row("Benchmark duration (s):", figures["duration"]),
        row("Total input tokens:", figures["total_input_tokens"]),
        row("Total generated tokens:", figures["total_output_tokens"]),
        row("Request throughput (req/s):", figures["request_throughput"]),
    ]
    if figures["request_goodput"] is not None:
        rows.append(row("Request goodput (req/s):", figures["request_goodput"]))
    rows += [
        row("Output token throughput (tok/s):", figures["output_throughput"]),
        row("Peak output token throughput (tok/s):", figures["max_output_tokens_per_s"]),
        row("Peak concurrent requests:", figures["max_concurrent_requests"]),
        row("Total token throughput (tok/s):", figures["total_token_throughput"]),
        *metric_rows(figures, options.percentile_metrics, percentiles),
        *extra_rows(figures),
        title(""),
    ]
    return "\n".join(rows)


def save(
    options: argparse.Namespace, figures: dict[str, object], outcomes: Sequence[Outcome]
) -> None:
    """Write the result file, under vLLM's keys."""
    rate = options.request_rate
    record: dict[str, object] = {
        **machine_facts(),
        "endpoint_type": options.backend,
        "backend": options.backend,
        "label": options.label,
        "tokenizer_id": options.tokenizer,
        "num_prompts": len(outcomes),
        "request_rate": "inf" if math.isinf(rate) else rate,
        "burstiness": options.burstiness,
        "max_concurrency": options.max_concurrency,
        **dict(word.partition("=")[::2] for word in options.metadata or ()),
        **figures,
    }
    if options.save_detailed:
        record |= details(outcomes)
    day = time.strftime("%Y%m%d-%H%M%S")
    name = options.result_filename or f"{options.backend}-{record['request_rate']}qps-{day}.json"
    write = append_json if options.append_result else write_json
    write(options.result_dir / name, record)


def details(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return lists with an entry for every request, failed ones too (seconds)."""
    return {
        "input_lens": [outcome.prompt_len for outcome in outcomes],
        "output_lens": [outcome.output_len for outcome in outcomes],
        "ttfts": [outcome.ttft_s if outcome.times_s else 0.0 for outcome in outcomes],
        "itls": [outcome.itls_s for outcome in outcomes],
        "latencies": [outcome.latency_s if outcome.times_s else 0.0 for outcome in outcomes],
        "start_times": [outcome.start_s for outcome in outcomes],
        "errors": [outcome.error or "" for outcome in outcomes],
    }
