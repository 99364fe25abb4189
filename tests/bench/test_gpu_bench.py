"""The GPU benchmark rehearsed on a CPU from the command line to the table."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paged_jax.bench.cases import Accuracy
from paged_jax.bench.gpu import PARTS, Run, table
from paged_jax.bench.implementations import kernels
from paged_jax.bench.timing import Effort, measure

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory) -> tuple[str, list[dict]]:
    """What a rehearsal prints, and its records."""
    out = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "paged_jax.bench", "gpu", "--out", str(out), "--rehearse"]
    cache = {"JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "xla"), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | cache, capture_output=True, text=True, check=True
    )
    lines = (out / "gpu.jsonl").read_text().splitlines()
    return done.stdout, [json.loads(line) for line in lines]


def test_every_part_is_rehearsed_without_an_error(rehearsal) -> None:
    _, records = rehearsal

    assert {record["part"] for record in records} == {part.name for part in PARTS}
    left_out = [record for record in records if "left_out" in record]
    assert [record for record in records if "error" in record] == []
    assert all(record["left_out"].startswith("not installed") for record in left_out)
    assert {record["part"] for record in left_out} <= {"peer"}


def test_every_kernel_is_right_in_the_rehearsal(rehearsal) -> None:
    printed, records = rehearsal
    checked = [record for record in records if record["part"] == "numerics"]

    assert len(checked) >= 4
    assert all(record["is_right"] for record in checked)
    assert f"numerics: {len(checked)} of {len(checked)} right" in printed


def test_every_record_says_where_it_was_measured(rehearsal) -> None:
    _, records = rehearsal
    facts = {"commit", "device", "platform", "jax", "python", "day", "dtype"}

    assert all(facts <= record.keys() for record in records)


def test_measurements_after_the_limits_carry_their_share(rehearsal) -> None:
    _, records = rehearsal
    timed = [record for record in records if record["part"] not in ("numerics", "limits", "peer")]

    assert all(0 < record["share_of_limit"] for record in timed)
    assert all(record["groups"] * record["calls"] > 0 for record in timed)


def test_the_table_names_what_is_wrong_failed_or_left_out() -> None:
    records = [
        {"part": "numerics", "case": "a", "dtype": "float32", "max_error": 1.0, "tolerance": 0.1},
        {"part": "decode", "case": "b", "dtype": "bfloat16", "error": "ValueError: no\nmore"},
        {"part": "step", "case": "c", "dtype": "bfloat16", "left_out": "no time"},
    ]

    printed = table(records)

    assert "0 of 1 right" in printed
    assert "WRONG a float32: error 1.0 above 0.1" in printed
    assert "ValueError: no" in printed and "no time" in printed


def test_a_shape_that_a_kernel_does_not_take_is_neither_right_nor_wrong() -> None:
    refused = {"part": "numerics", "case": "a", "dtype": "float32", "not_taken": "head_dim 80"}

    assert table([refused]).startswith("numerics: 0 of 0 right, 1 not taken\n")


def test_every_kernel_is_measured_on_a_gpu_by_name() -> None:
    assert set(kernels(interpret=False)) == {"triton", "mosaic"}


def test_records_are_in_the_file_at_once(tmp_path) -> None:
    run = Run(tmp_path / "gpu.jsonl", {"device": "cpu"})

    run.add("limits", "copy", {"bytes_per_s": 2.0})

    written = json.loads((tmp_path / "gpu.jsonl").read_text())
    assert written == {"part": "limits", "case": "copy", "bytes_per_s": 2.0, "device": "cpu"}
    assert run.limit("copy", "bytes_per_s") == 2.0


def test_a_result_that_is_not_a_number_is_wrong() -> None:
    assert not Accuracy(float("nan"), 0.1).is_right


def test_measure_hands_each_call_what_the_last_returned() -> None:
    effort = Effort(warm_up=2, groups=3, calls=4)
    seen: list[int] = []

    timing = measure(lambda state: seen.append(state) or state + 1, 0, effort)

    assert seen == list(range(2 + 3 * 4))
    assert (timing.groups, timing.calls) == (3, 4)
