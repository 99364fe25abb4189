"""An engine's state in a folder: keys and values as an Orbax checkpoint, all else as JSON.

Both carry SHA-256 digests, which are checked before anything is believed; nothing is ever
unpickled. A folder appears under its name when it is complete.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paged_jax.host.saved import SnapshotError

FORMAT = "paged_jax engine state"
VERSION = 1
FACTS, ARRAYS = "state.json", "kv"


@dataclass(frozen=True)
class EngineState:
    """What an engine is in the middle of, on the host.

    Attributes:
        facts: plain values, as JSON can hold them.
        rows: by array of the KV pool, [tokens kv_heads *head_dim]; empty if no token is in use.
    """

    facts: Mapping[str, Any]
    rows: Mapping[str, np.ndarray]


def write_snapshot(state: EngineState, path: str | Path) -> None:
    """Write a new folder.

    Raises:
        SnapshotError: there is something at `path`, or it cannot be written.
    """
    folder = Path(path).expanduser().absolute()
    if folder.exists():
        raise SnapshotError(f"{folder} exists: choose another path or remove it")
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if state.rows:
            _save_arrays(partial / ARRAYS, state.rows)
        digests = {name: _digest_of(array) for name, array in state.rows.items()}
        body = json.dumps({"facts": state.facts, "arrays": digests})
        head = {"format": FORMAT, "version": VERSION, "sha256": _sha256(body.encode())}
        (partial / FACTS).write_text(f"{json.dumps(head)}\n{body}\n", "utf-8")
        partial.rename(folder)
    except OSError as error:
        raise SnapshotError(f"the snapshot {folder} cannot be written: {error}") from error


def read_snapshot(path: str | Path) -> EngineState:
    """Read a folder that `write_snapshot` wrote.

    Raises:
        SnapshotError: it is no snapshot, of another version, incomplete, or damaged.
    """
    folder = Path(path).expanduser().absolute()
    content = _read_facts(folder)
    try:
        facts, digests = dict(content["facts"]), dict(content["arrays"])
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(folder / FACTS) from error
    rows = _load_arrays(folder / ARRAYS) if digests else {}
    if {name: _digest_of(array) for name, array in rows.items()} != digests:
        raise _damaged(folder / ARRAYS)
    return EngineState(facts, rows)


def _read_facts(folder: Path) -> dict[str, Any]:
    try:
        head_line, _, body = (folder / FACTS).read_bytes().partition(b"\n")
    except OSError as error:
        raise SnapshotError(
            f"{folder} is no snapshot, as its {FACTS} cannot be read: give a folder that "
            "Engine.snapshot wrote"
        ) from error
    head = _parse(head_line, folder)
    if head.get("format") != FORMAT:
        raise _damaged(folder / FACTS)
    if head.get("version") != VERSION:
        raise SnapshotError(
            f"{folder} is a snapshot of version {head.get('version')}, but this release reads "
            f"version {VERSION}: continue it with the release that wrote it"
        )
    if head.get("sha256") != _sha256(body.removesuffix(b"\n")):
        raise _damaged(folder / FACTS)
    return _parse(body, folder)


def _parse(line: bytes, folder: Path) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _damaged(folder / FACTS) from error
    if not isinstance(found, dict):
        raise _damaged(folder / FACTS)
    return found


def _damaged(file: Path) -> SnapshotError:
    return SnapshotError(f"{file} is damaged or incomplete: take the snapshot again")


def _save_arrays(folder: Path, rows: Mapping[str, np.ndarray]) -> None:
    import orbax.checkpoint as ocp  # here, since it takes seconds to load

    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(folder, dict(rows))


def _load_arrays(folder: Path) -> dict[str, np.ndarray]:
    import orbax.checkpoint as ocp

    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            found = checkpointer.restore(folder)
        return {str(name): np.asarray(array) for name, array in found.items()}
    except Exception as error:  # Orbax and what it stands on have many
        raise _damaged(folder) from error


def _digest_of(array: np.ndarray) -> list[Any]:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return [list(array.shape), array.dtype.name, _sha256(data)]


def _sha256(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()
