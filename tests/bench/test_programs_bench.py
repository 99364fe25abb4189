"""`bench programs`: what is counted for the programs of a tiny engine, against counts by hand."""

import json

import pytest
from tiny import make_tiny_folder, tiny_config_json

from paged_jax.bench.__main__ import main
from paged_jax.bench.programs import ProgramReport

ENGINE = ("--max-num-batched-tokens", "16", "--max-num-seqs", "4", "--max-model-len", "96")
CACHE = ("--dtype", "float32", "--num-gpu-blocks-override", "8", "--block-size", "4")


def test_each_program_is_listed_with_its_work_and_its_least_time(tmp_path, capsys) -> None:
    model = str(make_tiny_folder(tmp_path / "model"))
    out = tmp_path / "programs.json"
    rates = ("--gflops", "1", "--gb-per-s", "1000")

    main(["programs", "--model", model, *ENGINE, *CACHE, *rates, "--output-json", str(out)])

    records = {record["name"]: record for record in json.loads(out.read_text())["programs"]}
    facts = tiny_config_json()
    embed, layers = facts["hidden_size"], facts["num_hidden_layers"]
    heads = (facts["num_attention_heads"], facts["num_key_value_heads"])
    q, kv = (count * facts["head_dim"] for count in heads)
    matrices = layers * embed * (2 * q + 2 * kv + 3 * facts["intermediate_size"])
    backbone, draw = records["backbone 16"], records["draw 4"]
    assert backbone["num_flops"] == 2 * 16 * matrices
    assert draw["num_flops"] == 2 * 4 * embed * facts["vocab_size"]
    assert backbone["least_s"] == pytest.approx(backbone["num_flops"] / 1e9)
    pool = 8 * 4 * 2 * layers * kv * 4
    assert backbone["in_place_bytes"] == pool == records["copy 16"]["in_place_bytes"]
    assert records["copy 16"]["moved_bytes"] == 2 * 16 * pool // 8
    assert all(record["compile_s"] > 0 for record in records.values())
    assert "backbone 16" in capsys.readouterr().out


def test_the_least_time_is_of_operations_or_of_bytes_whichever_takes_longer() -> None:
    report = ProgramReport("draw 1", 0.0, 0, 0, 0, num_flops=6, moved_bytes=8)

    assert report.least_s(2.0, 8.0) == 3.0
    assert report.least_s(6.0, 2.0) == 4.0
