"""`bench serve` against paged_jax's server over an engine that repeats the prompt."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import make_tiny_folder

from paged_jax.bench.__main__ import main
from paged_jax.bench.scrape import read_samples, summarise_samples

SERVER = Path(__file__).parents[1] / "server" / "serve_fake.py"
LOAD = ("--vocab-size", "200", "--input-len", "24", "--output-len", "6", "--ignore-eos")


def start(**env: str) -> "tuple[subprocess.Popen[str], str]":
    command = [sys.executable, str(SERVER), "--port", "0"]
    env = os.environ | {"PYTHONPATH": str(SERVER.parents[2]), "STEP_S": "0.001"} | env
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stderr is not None
    line = next(line for line in process.stderr if "running on" in line)
    return process, "http://127.0.0.1:" + line.split("http://127.0.0.1:")[1].split()[0]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    process, url = start()
    yield url
    process.kill()
    process.communicate()


def test_every_request_is_answered_and_vllms_keys_are_saved(url, tmp_path, capsys) -> None:
    words = ("--num-prompts", "9", "--max-concurrency", "4", "--goodput", "ttft:60000")
    saving = ("--save-result", "--save-detailed", "--result-dir", str(tmp_path))

    main(["serve", "--base-url", url, *LOAD, *words, *saving, "--result-filename", "r.json"])

    record, printed = json.loads((tmp_path / "r.json").read_text()), capsys.readouterr().out
    assert (record["completed"], record["failed"], record["total_output_tokens"]) == (9, 0, 54)
    assert record["total_input_tokens"] == 9 * 24
    assert record["max_concurrent_requests"] <= 4
    assert record["request_goodput"] == record["request_throughput"]
    assert {"date", "endpoint_type", "model_id", "tokenizer_id", "request_rate"} <= set(record)
    assert {f"p{p}_{m}_ms" for p in (50, 90, 99) for m in ("ttft", "tpot", "itl")} <= set(record)
    assert [len(record[name]) for name in ("ttfts", "itls", "errors")] == [9, 9, 9]
    assert "Failed requests:                         0" in printed


def test_the_servers_own_metrics_are_in_the_report(url, tmp_path, capsys) -> None:
    words = ("--num-prompts", "3", "--save-result", "--result-dir", str(tmp_path))

    main(["serve", "--base-url", url, *LOAD, *words, "--result-filename", "r.json"])

    record = json.loads((tmp_path / "r.json").read_text())
    assert record["peak_rss_bytes"] > 1 << 20
    assert record["num_compilations"] == 0
    assert "Peak memory (MiB):" in capsys.readouterr().out


def test_chat_is_sent_as_text(url, tmp_path) -> None:
    model = str(make_tiny_folder(tmp_path / "model"))
    words = ("--num-prompts", "2", "--backend", "openai-chat", "--tokenizer", model)
    saving = ("--save-result", "--result-dir", str(tmp_path), "--result-filename", "r.json")

    main(["serve", "--base-url", url, *LOAD, *words, *saving])

    record = json.loads((tmp_path / "r.json").read_text())
    assert (record["completed"], record["total_output_tokens"]) == (2, 12)
    assert record["total_input_tokens"] > 2 * 24  # the template's own and the bytes of each id


def test_chat_needs_a_tokenizer(url, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--base-url", url, *LOAD, "--backend", "openai-chat"])

    assert "--backend openai-chat needs --tokenizer" in capsys.readouterr().err


def test_failed_requests_are_counted_and_end_with_code_1(capsys) -> None:
    process, url = start(FAIL_AFTER="3")
    try:
        with pytest.raises(SystemExit) as ended:
            main(["serve", "--base-url", url, *LOAD, "--num-prompts", "4", "--model", "fake"])
    finally:
        process.kill()
        process.communicate()

    printed = capsys.readouterr()
    assert ended.value.code == 1
    assert "Failed requests:                         4" in printed.out
    assert " failed: " in printed.err


def test_a_server_that_is_not_there_is_named(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--base-url", "http://127.0.0.1:1", *LOAD])

    assert ended.value.code == 2
    assert "no server answers at http://127.0.0.1:1" in capsys.readouterr().err


def test_scrapes_are_summed_over_labels_and_compared() -> None:
    first = read_samples('vllm:prefix_cache_queries_total{a="b"} 10\n# HELP x\nx_total{k="1"} 1.0')
    last = {"paged_jax:prefix_cache_queries_total": 30.0, "paged_jax:prefix_cache_hits_total": 5.0}
    seen = {"paged_jax:kv_slot_use_perc": 0.5, "paged_jax:kv_cache_usage_perc": 0.25}

    figures = summarise_samples([first | {"paged_jax:prefix_cache_hits_total": 0.0}, seen, last])

    assert figures["prefix_hit_rate"] == 0.25
    assert (figures["kv_slot_use_mean"], figures["kv_cache_usage_max"]) == (0.5, 0.25)
    assert figures["peak_rss_bytes"] is None
    assert read_samples('a{x="1"} 1\na{x="2"} 2e0') == {"a": 3.0}
