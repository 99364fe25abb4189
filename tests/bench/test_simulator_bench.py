"""`bench simulator` from end to end on a tiny model; how close it comes is not asserted."""

import json

from tiny import make_tiny_folder

from paged_jax.bench.__main__ import main


def test_the_simulator_is_compared_with_the_engine(tmp_path, capsys) -> None:
    out = tmp_path / "o.jsonl"
    sizes = ("--batches", "1,3", "--contexts", "20,40", "--prefills", "4,8,16", "--num-steps", "4")
    engine = ("--max-num-batched-tokens", "16", "--max-num-seqs", "4", "--max-model-len", "96")
    model = str(make_tiny_folder(tmp_path / "model"))

    main(["simulator", "--model", model, *sizes, *engine, "--num-prompts", "5", "--out", str(out)])

    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["name"] for one in found] == ["W3", "Poisson"]
    assert all(one["num_alike"] == one["num_steps"] > 10 for one in found)
    assert "rms error" in capsys.readouterr().out
