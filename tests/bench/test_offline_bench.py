"""The offline commands from the command line to the report, on a model of a few kilobytes."""

import json

import pytest
from tiny import make_tiny_folder

from paged_jax.bench.__main__ import main

ENGINE = ("--max-num-batched-tokens", "16", "--max-num-seqs", "4", "--max-model-len", "64")
SIZES = ("--vocab-size", "200", "--kv-cache-memory", "1MiB", *ENGINE)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(make_tiny_folder(tmp_path_factory.mktemp("model")))


def lines_of(path) -> dict:
    return json.loads(path.read_text())


def test_throughput_does_every_token_and_reports_vllms_keys(model, tmp_path, capsys) -> None:
    out = tmp_path / "results" / "t.json"
    words = ("--num-prompts", "5", "--input-len", "20", "--output-len", "6")

    main(["throughput", "--model", model, *SIZES, *words, "--output-json", str(out)])

    record, printed = lines_of(out), capsys.readouterr().out
    assert (record["num_requests"], record["total_num_tokens"]) == (5, 130)
    assert {"model_id", "elapsed_time", "requests_per_second", "tokens_per_second"} <= set(record)
    assert (record["num_compilations"], record["failed"]) == (0, 0)
    assert 0 < record["kv_slot_use_mean"] <= record["kv_slot_use_max"] <= 1
    assert record["peak_rss_bytes"] > 1 << 20
    assert printed.startswith("Throughput: ")
    assert "Total num output tokens:  30" in printed


def test_a_shared_prefix_is_seen_in_the_hit_rate(model, tmp_path, capsys) -> None:
    out = tmp_path / "t.json"
    words = ("--num-prompts", "4", "--input-len", "2", "--output-len", "2", "--num-warmups", "0")
    flags = (*words, "--random-prefix-len", "32", "--output-json", str(out))

    main(["throughput", "--model", model, *SIZES, *flags])

    assert lines_of(out)["prefix_hit_rate"] > 0.5
    assert "Prefix cache hit rate (%):" in capsys.readouterr().out


def test_requests_that_cannot_be_served_are_counted_and_explained(model, capsys) -> None:
    words = ("--num-prompts", "2", "--input-len", "70", "--output-len", "2", "--num-warmups", "0")

    with pytest.raises(SystemExit) as ended:
        main(["throughput", "--model", model, *SIZES, *words])

    printed = capsys.readouterr()
    assert ended.value.code == 1
    assert "Failed requests:          2" in printed.out
    assert "2 failed: " in printed.err and "64" in printed.err


def test_latency_reports_every_iteration(model, tmp_path, capsys) -> None:
    out = tmp_path / "l.json"
    words = ("--batch-size", "2", "--input-len", "8", "--output-len", "4")
    turns = ("--num-iters-warmup", "1", "--num-iters", "3")

    main(["latency", "--model", model, *SIZES, *words, *turns, "--output-json", str(out)])

    record, printed = lines_of(out), capsys.readouterr().out
    assert len(record["latencies"]) == 3
    assert list(record["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    assert record["avg_latency"] == pytest.approx(sum(record["latencies"]) / 3)
    assert "99% percentile latency: " in printed


def test_a_wrong_option_ends_with_one_line(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["throughput", "--block-size", "0"])

    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: --block-size")
