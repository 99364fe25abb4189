"""/metrics: vLLM's names, present from the start, with the right figures; times in answers."""

from dataclasses import replace

import pytest
from fake_engine import FakeEngine
from served_engine import SETTINGS, Served, serve

from paged_jax.host.trace import EngineStats, PoolUsage, RequestRecord
from server.load_log import LoadLine
from server.metrics import durations

NAMES = """
num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc
prefix_cache_queries_total prefix_cache_hits_total num_preemptions_total prompt_tokens_total
prompt_tokens_cached_total prompt_tokens_by_source_total generation_tokens_total
request_success_total time_to_first_token_seconds_bucket inter_token_latency_seconds_bucket
request_time_per_output_token_seconds_bucket e2e_request_latency_seconds_bucket
request_queue_time_seconds_bucket request_prefill_time_seconds_bucket
request_decode_time_seconds_bucket request_inference_time_seconds_bucket
request_prompt_tokens_bucket request_generation_tokens_bucket
request_max_num_generation_tokens_bucket request_params_max_tokens_bucket
request_prefill_kv_computed_tokens_bucket request_params_n_bucket request_num_preemptions_bucket
iteration_tokens_total_bucket cache_config_info prompt_tokens_cached_by_source_total
admission_rejections_total
""".split()


def samples_of(served: Served) -> dict[str, float]:
    """Name with labels -> value."""
    lines = served.http.get("/metrics").text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line[:1] != "#"]
    return {name: float(value) for name, value in pairs}


def sum_of(samples: dict[str, float], start: str) -> float:
    return sum(
        value for name, value in samples.items() if name.split("{")[0] == f"paged_jax:{start}"
    )


def test_every_name_is_there_before_the_first_request(slow: Served):
    names = {name.split("{")[0] for name in samples_of(slow)}
    assert {f"paged_jax:{name}" for name in NAMES} <= names
    assert not any(name.startswith("vllm:") for name in names)
    assert {"paged_jax:compilations_total", "paged_jax:copy_on_write_blocks_total"} <= names


@pytest.mark.parametrize("reason", ["stop", "length", "abort", "error"])
def test_every_reason_starts_at_zero(slow: Served, reason):
    label = f'engine="0",finished_reason="{reason}",model_name="fake"'
    assert samples_of(slow)[f"paged_jax:request_success_total{{{label}}}"] == 0


def test_cache_settings_are_labels(served: Served):
    (info,) = [
        name for name in samples_of(served) if name.startswith("paged_jax:cache_config_info")
    ]
    for label in ('block_size="16"', 'num_gpu_blocks="65"', 'kv_cache_size_tokens="1024"'):
        assert label in info
    assert 'kv_cache_max_concurrency="2.00"' in info and 'enable_prefix_caching="True"' in info


def test_a_request_is_counted(slow: Served):
    slow.complete("abc", n=2, max_tokens=1)
    samples = samples_of(slow)
    assert sum_of(samples, "request_success_total") == 2
    assert sum_of(samples, "prompt_tokens_total") == 3
    assert sum_of(samples, "inter_token_latency_seconds_count") == 3
    assert sum_of(samples, "request_params_n_sum") == 2


def test_gauges_tell_the_present(slow: Served):
    body = {"prompt": "ab", "max_tokens": 400, "stream": True}
    with slow.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        samples = samples_of(slow)
        assert sum_of(samples, "num_requests_running") == 1
        assert sum_of(samples, "kv_cache_usage_perc") == 0.25
    slow.complete("ab", max_tokens=30)
    assert sum_of(samples_of(slow), "num_requests_running") == 0


def make_record(**changes) -> RequestRecord:
    record = RequestRecord(
        id="r", n=1, num_prompt_tokens=8, num_cached_tokens=0, num_generated=5, max_generated=5,
        max_tokens=5, num_preemptions=0, finish_reasons=("stop",), arrival_s=10.0, scheduled_s=11.0,
        first_token_s=13.0, last_token_s=21.0, finish_s=22.0,
    )  # fmt: skip
    return replace(record, **changes)


def test_stages_are_differences_of_their_ends():
    assert durations(make_record()) == {
        "time_to_first_token_seconds": 3.0,
        "e2e_request_latency_seconds": 12.0,
        "request_queue_time_seconds": 1.0,
        "request_prefill_time_seconds": 2.0,
        "request_inference_time_seconds": 10.0,
        "request_decode_time_seconds": 8.0,
        "request_time_per_output_token_seconds": 2.0,
    }


def test_stages_not_reached_are_absent():
    record = make_record(scheduled_s=None, first_token_s=None, last_token_s=None)
    assert durations(record) == {"e2e_request_latency_seconds": 12.0}
    assert "request_time_per_output_token_seconds" not in durations(make_record(max_generated=1))


def test_load_line_has_vllms_words():
    before = EngineStats(prefix_queries=100, prefix_hits=10)
    now = EngineStats(
        num_running=3, num_waiting=1, usage=PoolUsage(40, 10, 99), prefix_queries=140,
        prefix_hits=30, generation_tokens=55, computed_prompt_tokens=20,
    )  # fmt: skip
    line = LoadLine(before, now, 10.0, "CPU")
    assert line.is_busy and str(line) == (
        "Engine 000: Avg prompt throughput: 2.0 tokens/s, Avg generation throughput: 5.5 tokens/s, "
        "Running: 3 reqs, Waiting: 1 reqs, CPU KV cache usage: 25.0%, Prefix cache hit rate: 50.0%"
    )


def test_load_line_is_silent_when_idle_and_without_lookups():
    idle = LoadLine(EngineStats(), EngineStats(), 10.0, "CPU")
    assert not idle.is_busy and "hit rate" not in str(idle)


@pytest.fixture(scope="module")
def aliased():
    yield from serve(FakeEngine(), replace(SETTINGS, has_metrics_alias=True))


def test_alias_repeats_every_name_and_figure_under_vllm(aliased: Served):
    aliased.complete("ab", max_tokens=2)
    samples = samples_of(aliased)
    own = {name: value for name, value in samples.items() if name.startswith("paged_jax:")}
    assert len(own) > 100
    for name, value in own.items():
        assert samples[name.replace("paged_jax:", "vllm:", 1)] == value
    lines = aliased.http.get("/metrics").text.splitlines()
    assert len(lines) == len(set(lines)), "a metric is told twice"


def test_answers_are_counted_by_route_and_never_by_a_client_s_path(slow: Served):
    slow.complete("ab", max_tokens=1)
    slow.refused("/v1/completions", prompt=5)
    slow.http.get("/v1/models/fake")
    slow.http.request("PUT", "/pot-4711")
    samples = samples_of(slow)
    for handler, method, status in (
        ("/v1/completions", "POST", "2xx"),
        ("/v1/completions", "POST", "4xx"),
        ("/v1/models/{name:path}", "GET", "2xx"),
        ("none", "other", "4xx"),
    ):
        label = f'handler="{handler}",method="{method}",status="{status}"'
        assert samples[f"http_requests_total{{{label}}}"] == 1
    assert "4711" not in slow.http.get("/metrics").text


TIMES = {
    "queue_time_ms": 1000.0, "prefill_time_ms": 2000.0, "time_to_first_token_ms": 2000.0,
    "decode_time_ms": 6000.0, "generation_time_ms": 6000.0, "mean_itl_ms": 3000.0,
    "tokens_per_second": 3 / 8, "num_preemptions": 1, "cached_tokens": 16, "completion_tokens": 3,
}  # fmt: skip


def test_times_are_told_on_request_in_every_kind_of_answer(served: Served):
    prompt, asked = "x" * 20, {"max_tokens": 3, "return_metrics": True}
    assert served.complete(prompt, **asked)["metrics"] == TIMES
    assert served.chat(prompt, **asked)["metrics"] == TIMES | {"cached_tokens": 32}
    assert served.stream(prompt, **asked)[-1]["metrics"] == TIMES
    body = {"input": prompt, "max_output_tokens": 3, "return_metrics": True}
    assert "mean_itl_ms" in served.post("/v1/responses", **body).json()["metrics"]
    assert "metrics" not in served.complete(prompt, max_tokens=3)
    events = served.stream(prompt, stream_options={"include_usage": True}, **asked)
    assert events[-1]["usage"] and events[-1]["metrics"] == TIMES


def test_times_are_those_of_one_prompt(served: Served):
    error = served.refused("/v1/completions", prompt=["a", "b"], return_metrics=True)
    assert error["param"] == "return_metrics"
    assert "mean_itl_ms" not in served.complete("a", max_tokens=1, return_metrics=True)["metrics"]
