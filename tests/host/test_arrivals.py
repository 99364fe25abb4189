"""Traces that are read, and loads that are made."""

from pathlib import Path

import pytest

from paged_jax.config import OptionError
from paged_jax.host.arrivals import Load, read_trace


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_trace_gives_prompts_or_their_lengths(tmp_path: Path) -> None:
    trace = write(
        tmp_path / "t",
        '{"at_s": 0.5, "prompt_len": 9, "max_tokens": 3, "client": "x", "priority": 2}',
        '{"at_s": 1, "prompt": [5, 6], "max_tokens": 1}',
    )

    first, second = read_trace(trace)

    assert (first.arrival_s, len(first.prompt), first.max_tokens) == (0.5, 9, 3)
    assert (first.cache_salt, first.priority) == ("x", 2)
    assert (second.prompt, second.cache_salt) == ((5, 6), None)


@pytest.mark.parametrize("line", ["x", "[]", '{"at_s": 0, "max_tokens": 1}', '{"prompt_len": 3}'])
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, line: str) -> None:
    trace = write(tmp_path / "t", '{"at_s": 0, "prompt_len": 1, "max_tokens": 1}', line)

    with pytest.raises(OptionError, match="line 2 of"):
        read_trace(trace)


def test_a_load_has_its_rate_and_its_lengths() -> None:
    requests = Load(num_requests=2000, rate=4.0, output_lens=(3, 5)).requests()

    assert requests[-1].arrival_s == pytest.approx(500, rel=0.1)
    assert {request.max_tokens for request in requests} == {3, 4, 5}
    assert requests == Load(num_requests=2000, rate=4.0, output_lens=(3, 5)).requests()


@pytest.mark.parametrize(
    ("field", "value"),
    [("rate", 0.0), ("num_requests", 0), ("prompt_lens", (5, 4)), ("clients", (1, 0))],
)
def test_a_load_out_of_range_is_refused_by_its_flag(field: str, value: object) -> None:
    with pytest.raises(OptionError, match="--" + field.replace("_", "-")):
        Load(**{field: value})
