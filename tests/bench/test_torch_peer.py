"""The steps that transformers runs: asked for in a process of its own, which may fail or hang."""

import importlib.util
import json
import sys
from dataclasses import replace

import pytest

from paged_jax.bench import torch_peer
from paged_jax.bench.cases import LeftOut
from paged_jax.bench.sizes import FULL, REHEARSAL


def make_program(text: str) -> tuple[str, str, str]:
    return (sys.executable, "-c", text)


def test_the_last_line_printed_is_what_was_measured() -> None:
    program = make_program('print("noise"); print(\'{"seconds": [0.5, 0.25]}\')')
    assert torch_peer.seconds_of(program) == [0.5, 0.25]


def test_a_program_that_fails_is_an_error_with_its_last_line() -> None:
    with pytest.raises(RuntimeError, match="OutOfMemoryError: 3 GiB"):
        torch_peer.seconds_of(
            make_program("class OutOfMemoryError(Exception): pass\nraise OutOfMemoryError('3 GiB')")
        )


def test_a_program_that_hangs_is_left_out(monkeypatch) -> None:
    monkeypatch.setattr(torch_peer, "TIMEOUT_S", 0.2)
    with pytest.raises(LeftOut, match="not done after 0 s"):
        torch_peer.seconds_of(make_program("import time; time.sleep(60)"))


def test_without_torch_the_case_is_left_out(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (case,) = torch_peer.peers(REHEARSAL)
    with pytest.raises(LeftOut, match="not installed: torch transformers"):
        case.run()


def test_the_program_is_asked_for_the_models_shape_and_its_figures_are_kept(
    monkeypatch, tmp_path
) -> None:
    script = tmp_path / "peer.py"
    script.write_text(
        "import sys; open(sys.argv[1] + '.asked', 'w').write(sys.argv[2])\n"
        "print('{\"seconds\": [2.0, 4.0, 3.0]}')"
    )
    monkeypatch.setattr(torch_peer, "PROGRAM", (sys.executable, str(script), str(script)))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    case = next(torch_peer.peers(replace(REHEARSAL, models=FULL.models)))

    measured = case.run()

    asked = json.loads((tmp_path / "peer.py.asked").read_text())
    assert case.name == "Llama-3.1-8B decode batch 2, transformers"
    assert (asked["shape"]["hidden_size"], asked["batch"], asked["context"]) == (4096, 2, 32)
    assert (measured.timing.median_s, measured.timing.groups) == (3.0, 3)
    assert measured.num_bytes > 15e9
