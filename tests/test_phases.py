"""The phases of a start."""

import pytest

from paged_jax.phases import PhaseClock


def test_phases_follow_one_another_from_where_the_clock_began(monkeypatch) -> None:
    ticks = iter([5.0, 6.5])
    monkeypatch.setattr("paged_jax.phases.time.monotonic", lambda: next(ticks))
    clock = PhaseClock(since_s=1.0)
    clock.end("import")
    clock.end("ready")
    assert clock.seconds == {"import": 4.0, "ready": 1.5}
    names, seconds = zip(*(line.split()[:2] for line in clock.table().splitlines()), strict=True)
    assert names == ("import", "ready", "total")
    assert [float(text) for text in seconds] == pytest.approx([4.0, 1.5, 5.5])
