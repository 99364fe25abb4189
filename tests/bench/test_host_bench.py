"""The host's share of a step, measured without a device."""

import json

import pytest

from paged_jax.bench import host
from paged_jax.bench.instant import instant_engine
from paged_jax.host.sampling_params import SamplingParams


def test_a_straight_line_is_found_again() -> None:
    line = host.line_of({count: 100.0 + 7.0 * count for count in (1, 8, 64)})
    assert line == pytest.approx({"fixed": 100.0, "slope": 7.0})
    assert host.line_of({4: 128.0}) == {}


def test_the_report_lists_each_number_of_sequences_and_the_line(tmp_path, capsys) -> None:
    out = tmp_path / "host.jsonl"
    host.main(["--num-seqs", "1,3", "--context", "20", "--steps", "4", "--output-json", str(out)])
    printed = capsys.readouterr().out
    assert "3 sequences:" in printed and "For each sequence:" in printed
    record = json.loads(out.read_text())
    assert list(record["microseconds"]) == ["1", "3"] and set(record["line"]) == {"fixed", "slope"}


def test_zero_sequences_are_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        host.main(["--num-seqs", "0"])
    assert "start at 1, not 0" in capsys.readouterr().err


def test_the_instant_engine_ends_its_requests() -> None:
    engine = instant_engine(host.engine_config(2, 40))
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    for name in "ab":
        engine.add([65] * 30, params, request_id=name)
    text = ""
    while engine.has_work:
        text += "".join(choice.text for delta in engine.step() for choice in delta.choices)
    assert sorted(text) == sorted("aaaaabbbbb")
    engine.scheduler.check()
