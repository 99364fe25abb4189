"""`bench mesh` on virtual devices: a pipeline of two devices a stage beside one device."""

import json

from conftest import SMALL

from paged_jax.bench.__main__ import main


def test_layouts_are_run_and_reported(folder, tmp_path, capsys) -> None:
    small = SMALL | {"num_gpu_blocks_override": 14}
    flags = [word for k, v in small.items() for word in ("--" + k.replace("_", "-"), str(v))]
    trace = ["--num-prompts", "4", "--input-len", "8", "--output-len", "6", "--meshes", "1,2x2"]
    out, image = tmp_path / "mesh.json", tmp_path / "mesh.svg"
    files = ["--output-json", str(out), "--picture", str(image)]

    main(["mesh", "--model", str(folder("llama")), *trace, *flags, *files])

    one, four = json.loads(out.read_text())["meshes"]
    assert one["traffic"] == {} and one["has_same_ids"] and four["has_same_ids"]
    assert four["traffic"]["all-reduce"] == {"count": 5, "num_bytes": 5 * 8 * 64 * 4}
    assert four["traffic"]["stage to stage"] == {"count": 1, "num_bytes": 8 * 64 * 4}
    assert four["pool_bytes"] == one["pool_bytes"] // 4
    assert four["weights_bytes"] < one["weights_bytes"] // 3
    assert four["step_s"] > 0 and "mesh 2x2" in image.read_text()
    assert "layer 1 keys                 -           -   0.00-0.50" in capsys.readouterr().out
