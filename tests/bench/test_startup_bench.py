"""`bench startup` on a server over a fake engine."""

import os
import sys
from pathlib import Path

import pytest

from paged_jax.bench.startup import start_once, text
from paged_jax.config import OptionError

SERVER = Path(__file__).parents[1] / "server" / "serve_fake.py"


def test_a_start_is_followed_until_the_server_listens(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(SERVER.parents[2]))
    monkeypatch.setitem(os.environ, "LOAD_S", "0.2")

    ends = start_once([], tmp_path, [sys.executable, str(SERVER)])

    assert 0.2 <= ends["ready"] == ends["rest"]
    assert ends["peak_rss_bytes"] > 1 << 20


def test_the_phases_that_the_server_tells_of_are_read(tmp_path) -> None:
    table = "INFO Start-up:\n  import          1.25 s\n  load            0.50 s\n  total  1.75 s\n"
    say = f"import sys; sys.stderr.write({table!r} + 'running on http://x\\n')"

    ends = start_once([], tmp_path, [sys.executable, "-c", say])

    assert (ends["import"], ends["load"]) == (1.25, 0.5)
    assert "total" not in ends and ends["rest"] == pytest.approx(ends["ready"] - 1.75)


def test_a_server_that_does_not_start_is_quoted(tmp_path) -> None:
    with pytest.raises(OptionError, match=r"ended early; .*--block-size must be"):
        start_once(["--block-size", "0"], tmp_path)


def test_the_table_has_medians_and_a_phase_not_seen_takes_no_time() -> None:
    cold = {"compile": [7.0, 9.0], "rest": [1.0], "ready": [8.0, 10.0]}
    warm = {"rest": [1.0], "ready": [4.0]}
    memory = {"peak_rss_bytes": [float(64 << 20)]}

    lines = text(cold | memory, warm | memory).splitlines()

    assert [line.split() for line in lines[1:4]] == [
        ["compile", "8.00", "0.00"],
        ["rest", "1.00", "1.00"],
        ["ready", "9.00", "4.00"],
    ]
    assert "Warm start P90: 4.00 s" in lines and lines[-1] == "Peak memory: 64 MiB"
