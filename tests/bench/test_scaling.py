"""`bench scaling` on a tiny model, and its picture."""

import json
import sys

import pytest
from tiny import make_tiny_folder

from paged_jax.bench.__main__ import main
from paged_jax.bench.scaling import draw_picture
from paged_jax.config import OptionError

RECORD = {
    "cores": 2, "cpu": "X",
    "throughput": [{"concurrency": 1, "output_throughput": 9.0}],
    "steps": [{"context": 128.0, "median_s": 0.1, "num_seqs": 8}],
}  # fmt: skip


def test_both_series_are_measured_and_written(tmp_path) -> None:
    out = tmp_path / "scaling.json"
    sizes = ("--concurrency", "1,4", "--contexts", "16,32", "--step-batch", "2", "--num-steps", "2")
    lengths = ("--input-len", "8", "--output-len", "4", "--vocab-size", "200")
    engine = ("--max-num-batched-tokens", "16", "--max-num-seqs", "4", "--max-model-len", "96")
    model = str(make_tiny_folder(tmp_path / "model"))

    main(["scaling", "--model", model, *sizes, *lengths, *engine, "--out", str(out)])

    record = json.loads(out.read_text())
    rates, steps = record["throughput"], record["steps"]
    assert [(r["concurrency"], r["total_output_tokens"]) for r in rates] == [(1, 4), (4, 16)]
    assert [s["num_seqs"] for s in steps] == [2, 2]
    assert steps[0]["context"] < steps[1]["context"]


def test_a_picture_is_drawn_where_matplotlib_is(tmp_path) -> None:
    pytest.importorskip("matplotlib")

    draw_picture(RECORD, tmp_path / "p.svg")

    assert "output tokens/s" in (tmp_path / "p.svg").read_text()


def test_without_matplotlib_the_remedy_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(OptionError, match=r"pip install 'paged_jax\[bench\]'"):
        draw_picture(RECORD, tmp_path / "p.svg")
