"""The side-by-side run with a peer that counts, and the table made of what it writes."""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest

from paged_jax.bench import backends, compare
from paged_jax.bench.__main__ import main
from paged_jax.bench.peer_setups import SETUPS, Setup
from paged_jax.bench.results_table import markdown, read_results
from paged_jax.bench.workloads import WORKLOADS

HERE = Path(__file__).parent


@pytest.fixture
def fakes(monkeypatch) -> None:
    """Two peers, both fake."""
    environment = {"PYTHONPATH": str(backends.PEERS)}
    monkeypatch.setattr(backends, "PEERS", HERE)
    named = {
        name: Setup(name, "fake", "", "m", environment=environment) for name in ("paged_jax", "b")
    }
    monkeypatch.setattr(compare, "SETUPS", named)


def rehearse(out: Path, *words: str) -> None:
    flags = ("--peers", str(out.parent), "--num-prompts", "2", "--out", str(out))
    main(["compare", *flags, "--backends", "paged_jax,b", *words])


def test_engines_alternate_and_every_workload_is_run(fakes, tmp_path) -> None:
    rehearse(tmp_path / "r.jsonl", "--workloads", "W1,W4W", "--reps", "2")

    records = read_results(tmp_path / "r.jsonl")
    order = [(record["rep"], record["backend"], record["workload"]) for record in records]
    assert order == [(r, b, w) for r in (0, 1) for b in ("paged_jax", "b") for w in ("W1", "W4W")]
    assert all(record["failed"] == 0 and record["peak_rss_bytes"] > 0 for record in records)
    assert {"cpu", "cores", "commit", "date", "others_cpu_share"} <= set(records[0])


def test_another_dtype_is_another_row(fakes, tmp_path) -> None:
    out = tmp_path / "r.jsonl"
    words = ("--workloads", "W1", "--reps", "1", "--num-prompts", "1")
    main(
        ["compare", "--peers", str(tmp_path), "--out", str(out), "--backends", "b:float32", *words]
    )

    (record,) = read_results(out)
    assert (record["backend"], record["dtype"]) == ("b float32", "float32")


def test_a_run_that_was_stopped_goes_on(fakes, tmp_path) -> None:
    out = tmp_path / "r.jsonl"
    rehearse(out, "--workloads", "W1", "--reps", "1")
    rehearse(out, "--workloads", "W1,W2", "--reps", "1")

    records = read_results(out)
    assert [record["workload"] for record in records] == ["W1", "W1", "W2", "W2"]


def test_a_warm_up_has_other_prompts_and_short_answers(monkeypatch) -> None:
    runs = []

    class Backend:
        def run(self, requests):
            runs.append(requests)
            return []

        def reset(self) -> None: ...

        def figures(self) -> dict:
            return {}

    monkeypatch.setattr(compare, "summarise", lambda *_: {})
    compare._measure(Backend(), WORKLOADS["W1"], rep=0, count=None)

    (warm,), (measured,) = runs
    assert (warm.max_tokens, measured.max_tokens) == (16, 128)
    assert len(warm.prompt) == len(measured.prompt)
    assert warm.prompt != measured.prompt


def test_unknown_names_are_refused(fakes, tmp_path, capsys) -> None:
    for words in (("--workloads", "W9"), ("--backends", "x")):
        with pytest.raises(SystemExit):
            rehearse(tmp_path / "r.jsonl", *words)
    assert "error: --workloads must be of W1" in capsys.readouterr().err


def test_workloads_have_the_stated_shapes() -> None:
    totals = {
        name: (len(reqs), sum(len(r.prompt) for r in reqs), sum(r.max_tokens for r in reqs))
        for name, reqs in ((name, load.make(0)) for name, load in WORKLOADS.items())
    }

    assert totals["W1"] == (1, 128, 128)
    assert totals["W2"] == (64, 8192, 8192)
    assert totals["W4"] == totals["W4W"] == (32, 32 * 1056, 1024)
    assert totals["W5"] == (128, 16384, 8192)
    lengths = [(len(r.prompt), r.max_tokens) for r in WORKLOADS["W3"].make(5)]
    assert lengths == [(len(r.prompt), r.max_tokens) for r in WORKLOADS["W3"].make(6)]
    assert all(16 <= a <= 512 and 16 <= b <= 256 for a, b in lengths)


def test_the_ids_of_a_workload_never_change() -> None:
    numbers = [t for r in WORKLOADS["W2"].make(0) for t in (*r.prompt, r.max_tokens)]
    digest = hashlib.sha256(np.asarray(numbers, np.int64).tobytes()).hexdigest()[:12]

    assert digest == "1b961103f068"
    assert WORKLOADS["W4"].make(1)[0].prompt[:1024] == WORKLOADS["W4"].make(1)[9].prompt[:1024]


def record(backend: str, load: str, rate: float, *, others: float = 0.0, failed: int = 0) -> dict:
    return {
        "backend": backend, "workload": load, "output_throughput": rate, "failed": failed,
        "others_cpu_share": others, "rep": 0, "dtype": "bfloat16", "threads": 2, "cores": 2,
        "cpu": "X", "commit": "c", "jax": "1", "date": "2026-11-29 10:00:00",
        "backend_version": "9.1",
    }  # fmt: skip


def test_the_table_takes_medians_of_undisturbed_complete_runs() -> None:
    records = [record("paged_jax", "W2", rate) for rate in (100.0, 120.0, 140.0)]
    records += [record("b", "W2", 60.0), record("b", "W2", 500.0, others=0.3)]
    records += [record("c", "W2", 900.0, failed=1), record("c", "W1", 5.0, others=0.5)]

    table = markdown(records)

    assert "| paged_jax 9.1, bfloat16 | - | 120 (100-140) |" in table
    assert "| b 9.1, bfloat16 | - | 60 (60-60) |" in table
    assert "| c 9.1, bfloat16 | 5 (5-5) | - |" in table
    assert "| **paged_jax / best peer** | - | **2.00** |" in table
    assert "5 of 7 runs undisturbed" in table and "1 failed requests" in table


def test_setups_lie_in_the_peers_folder_and_know_their_processes() -> None:
    vllm = SETUPS["vllm"].within(Path("/peers"))
    loads = {name: WORKLOADS[name] for name in ("W1", "W2", "W4", "W4W")}

    assert (vllm.program, vllm.model) == ("/peers/vllm/bin/python", "/peers/smollm2-hf")
    assert [list(group) for group in vllm.groups(loads)] == [["W1", "W2"], ["W4", "W4W"]]
    assert vllm.environment["LD_PRELOAD"].endswith(":/peers/vllm/lib/libiomp5.so")
    assert SETUPS["paged_jax"].within(Path("/peers")).program == sys.executable
    assert not SETUPS["openvino"].runs("W5")
