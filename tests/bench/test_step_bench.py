"""`bench step` and `bench kernels` on tiny shapes."""

import json

import pytest
from tiny import make_tiny_folder

from paged_jax.bench.__main__ import main
from paged_jax.bench.kernel_cases import measure_kernels, usable_backends
from paged_jax.bench.kernels import line


def records_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_steps_are_timed_by_batch_context_and_prompt(tmp_path, capsys) -> None:
    out = tmp_path / "s.jsonl"
    sizes = ("--batches", "1,3", "--contexts", "20,40", "--prefills", "8,16", "--num-steps", "4")
    engine = ("--max-num-batched-tokens", "16", "--max-num-seqs", "4", "--max-model-len", "96")
    model = str(make_tiny_folder(tmp_path / "model"))

    main(["step", "--model", model, *sizes, *engine, "--out", str(out)])

    records = records_of(out)
    shapes = [(r["kind"], r["num_seqs"], r["num_tokens"]) for r in records]
    decodes = [("decode", 1, 1), ("decode", 3, 3), ("decode", 3, 3)]
    assert shapes == [*decodes, ("prefill", 1, 8), ("prefill", 1, 16)]
    assert records[0]["context"] == pytest.approx(20, abs=4)
    assert records[2]["context"] == pytest.approx(45, abs=12)
    assert all(0 < r["median_s"] <= r["p90_s"] and "cpu" in r for r in records)
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_wrong_sizes_are_named(tmp_path, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["step", "--batches", "1,x", "--out", str(tmp_path / "s")])

    assert "--batches, --contexts and --prefills are like 1,8,64" in capsys.readouterr().err


def test_every_part_is_measured_on_every_usable_back_end() -> None:
    records = list(measure_kernels(is_quick=True))

    names = [record["case"] for record in records]
    parts = {name.split()[0] for name in names}
    assert parts == {"limit", "attention", "write_kv", "product", "sampler"}
    for backend in usable_backends():
        assert any(name.startswith(f"attention {backend} decode") for name in names)
    assert [record for record in records if "error" in record] == []
    assert all(record["share_of_limit"] > 0 for record in records[2:])


def test_cases_are_chosen_by_name_and_limits_come_along() -> None:
    names = [record["case"] for record in measure_kernels("sampler", is_quick=True)]

    assert names[:2] == ["limit copy", "limit product float32"]
    assert all("sampler" in name for name in names[2:])


def test_a_case_that_failed_says_why_in_its_line() -> None:
    assert line({"case": "a", "error": "ValueError: no"}).split() == ["a", "ValueError:", "no"]
