"""`bench mesh`: what is read from a program's text, and how it is told. On devices: tests/mesh."""

from xml.etree import ElementTree

import pytest

from paged_jax.bench.__main__ import main
from paged_jax.bench.hlo_traffic import Traffic, added, collectives
from paged_jax.bench.mesh import MeshReport, sizes_of, table
from paged_jax.bench.mesh_picture import Placement, picture
from paged_jax.bench.mesh_picture import table as placement_table

HLO = """
  %all-reduce.3 = f32[8,64]{1,0} all-reduce(f32[8,64]{1,0} %dot.1), replica_groups={{0,1}}
  %all-reduce.4 = bf16[8,64]{1,0} all-reduce(%all-reduce.3), to_apply=%add
  %all-gather.1 = (f32[2,4]{1,0}, s32[2,4]{1,0}) all-gather(%a, %b), dimensions={0}
  %ar = f32[16]{0} all-reduce-start(%x), to_apply=%add
  %done = f32[16]{0} all-reduce-done(%ar)
  %ag = (f8e4m3fn[3]{0}, f8e4m3fn[6]{0}) all-gather-start(%y), dimensions={0}
  ROOT %fusion = f32[8]{0} fusion(%all-reduce.3), calls=%c
"""
ROWS = [Placement("embedding", {0: (0.0, 0.5), 1: (0.5, 1.0)}), Placement("head", {1: (0.0, 1.0)})]


def test_collectives_are_counted_by_kind_with_their_results_bytes() -> None:
    reduced = Traffic(3, 8 * 64 * 4 + 8 * 64 * 2 + 16 * 4)
    gathered = Traffic(2, 2 * 8 * 4 + 6)

    found = collectives(HLO)

    assert found == {"all-reduce": reduced, "all-gather": gathered}
    assert added(found, {"all-gather": Traffic(1, 4)})["all-gather"] == Traffic(3, 74)


@pytest.mark.parametrize(
    ("text", "sizes"), [("4", (1, 1, 4)), ("2x3", (1, 2, 3)), ("2x1x4", (2, 1, 4))]
)
def test_a_layout_is_replicas_stages_and_devices_of_a_layer(text, sizes) -> None:
    assert sizes_of(text) == sizes


@pytest.mark.parametrize("text", ["", "2x", "0", "1x2x3x4", "a"])
def test_a_wrong_layout_is_named(text, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["mesh", "--meshes", f"1,{text}"])
    assert f"--meshes is like 1,2,1x4,2x2,2x1x2, not {text!r}" in capsys.readouterr().err


def test_the_table_has_a_line_for_each_layout_and_kind() -> None:
    traffic = {"all-reduce": Traffic(5, 10240)}
    report = MeshReport("1x2", 2, traffic, 3 << 20, 1 << 20, 0, 0.002, 50.0, False)

    _, line, kind = table([report]).splitlines()

    assert line.split() == "1x2 2 3.00 MiB 1.00 MiB 0.00 MiB 2.00 ms 50.0 NO".split()
    assert kind.split() == "5 x all-reduce 10,240 bytes a step".split()


def test_where_arrays_lie_is_told_and_drawn() -> None:
    lines = [line.split() for line in placement_table(ROWS).splitlines()]
    assert lines[1:] == [["embedding", "0.00-0.50", "0.50-1.00"], ["head", "-", "all"]]

    root = ElementTree.fromstring(picture({"2": ROWS}))

    boxes = [each for each in root if each.tag.endswith("rect")]
    dark = [float(box.get("width", 0)) for box in boxes if box.get("fill") != "#eee"]
    assert len(boxes) - len(dark) == 4 and dark == [15, 15, 30]
