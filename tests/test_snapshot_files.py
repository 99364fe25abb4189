"""A snapshot's folder: what is read is what was written, or it is refused with a reason."""

import json
from pathlib import Path

import numpy as np
import pytest

from paged_jax.engine.snapshot import EngineState, read_snapshot, write_snapshot
from paged_jax.host.saved import SnapshotError

FACTS = {"requests": [{"id": "a", "prompt": [1, 2]}], "name": "\ud800 é"}


@pytest.fixture
def rows(rng: np.random.Generator) -> dict[str, np.ndarray]:
    bits = rng.integers(0, 1 << 16, (50, 2, 16)).astype(np.uint16)
    return {"k.0": bits, "k_scales.0": rng.random((50, 2), np.float32)}


@pytest.fixture
def folder(tmp_path: Path, rows: dict[str, np.ndarray]) -> Path:
    write_snapshot(EngineState(FACTS, rows), tmp_path / "state")
    return tmp_path / "state"


def test_what_is_read_is_what_was_written(folder: Path, rows: dict[str, np.ndarray]) -> None:
    state = read_snapshot(folder)

    assert state.facts == FACTS and state.rows.keys() == rows.keys()
    for name, array in rows.items():
        assert state.rows[name].dtype == array.dtype and np.array_equal(state.rows[name], array)


def test_a_state_without_tokens_has_no_arrays(tmp_path: Path) -> None:
    write_snapshot(EngineState(FACTS, {}), tmp_path / "state")
    assert read_snapshot(tmp_path / "state") == EngineState(FACTS, {})
    assert [file.name for file in (tmp_path / "state").iterdir()] == ["state.json"]


def test_nothing_is_overwritten(folder: Path) -> None:
    with pytest.raises(SnapshotError, match=r"state exists: choose another path or remove it"):
        write_snapshot(EngineState({}, {}), folder)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r"is no snapshot.*give a folder that Engine.snapshot"):
        read_snapshot(tmp_path)


def largest_data_file(folder: Path) -> Path:
    return max((folder / "kv").rglob("d/*"), key=lambda file: file.stat().st_size)


@pytest.mark.parametrize("find", [lambda folder: folder / "state.json", largest_data_file])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_file_is_noticed(folder: Path, find, damage: str) -> None:
    file: Path = find(folder)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()
    if damage != "gone":
        file.write_bytes(data if damage == "flipped" else data[: len(data) * 2 // 3])

    with pytest.raises(SnapshotError, match=r"damaged or incomplete|is no snapshot"):
        read_snapshot(folder)


def test_a_pickle_in_its_place_is_not_opened(folder: Path) -> None:
    (folder / "state.json").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(SnapshotError, match="damaged"):
        read_snapshot(folder)


def test_another_version_is_refused_by_name(folder: Path) -> None:
    head, body = (folder / "state.json").read_text().splitlines()
    head = json.dumps(json.loads(head) | {"version": 2})
    (folder / "state.json").write_text(f"{head}\n{body}\n")
    with pytest.raises(SnapshotError, match="of version 2, but this release reads version 1"):
        read_snapshot(folder)
