"""The field `taps`: how it is read, refused and answered."""

import pytest
from served_engine import Served

from paged_jax.host.taps import AddVector, SetVector, ZeroHead

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
READ = {"residual": [0, 1], "attention": [0], "positions": [0, -1]}


def test_edits_reach_the_engine_as_they_were_written(served: Served) -> None:
    edits = [
        {"kind": "add_vector", "layer": 1, "vector": [0.5] * 8, "start": -1},
        {"kind": "set_vector", "layer": 0, "vector": [1] * 8, "position": 2},
        {"kind": "zero_head", "layer": 0, "head": 3, "stop": 5},
    ]
    answer = served.complete("abc", max_tokens=2, taps={"edits": edits})
    assert served.engine.asked[-1][0].taps.edits == (
        AddVector(1, (0.5,) * 8, start=-1),
        SetVector(0, (1.0,) * 8, 2),
        ZeroHead(0, 3, 0, 5),
    )
    assert "captures" not in answer["choices"][0]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_what_was_read_is_told_with_the_choice(served: Served, path: str) -> None:
    if path == CHAT:
        answer = served.chat("ab", max_tokens=2, taps=READ)
    else:
        answer = served.complete("abc", max_tokens=2, taps=READ)
    captures = answer["choices"][0]["captures"]
    assert captures["positions"] == [0, -1]
    assert captures["residual"] == {"0": [[0.0] * 8] * 2, "1": [[0.0] * 8] * 2}
    width = len(captures["attention"]["0"][0][0])
    assert captures["attention"]["0"] == [[[1.0, *[0.0] * (width - 1)]]] * 2


WRONG = {
    "taps.residual[0] must be between": {"residual": [-1]},
    "taps.attention must have 0 to 32": {"attention": [0] * 33},
    "taps.positions must be a list": {"positions": 3},
    "taps.edits[0].kind must be one of add_vector": {"edits": [{"kind": "cut", "layer": 0}]},
    "taps.edits[0].layer is needed": {"edits": [{"kind": "zero_head"}]},
    "kind zero_head needs head": {"edits": [{"kind": "zero_head", "layer": 0}]},
    "kind set_vector needs position": {
        "edits": [{"kind": "set_vector", "layer": 0, "vector": [1]}]
    },
    "must be a finite number": {"edits": [{"kind": "add_vector", "layer": 0, "vector": ["x"]}]},
}


@pytest.mark.parametrize(("message", "taps"), WRONG.items(), ids=WRONG)
def test_wrong_taps_are_refused_and_named(served: Served, message: str, taps: object) -> None:
    error = served.refused(COMPLETIONS, prompt="abc", taps=taps)
    assert message in error["message"] and error["param"].startswith("taps")


def test_streams_do_not_tell_what_was_read(served: Served) -> None:
    error = served.refused(COMPLETIONS, prompt="abc", stream=True, taps=READ)
    assert error["message"] == "taps that read are not offered in streams"
    edits = [{"kind": "zero_head", "layer": 0, "head": 0}]
    assert served.stream("abc", max_tokens=2, taps={"edits": edits})


def test_choices_beams_and_large_answers_are_refused(served: Served) -> None:
    for fields in ({"n": 2}, {"use_beam_search": True}):
        assert served.refused(COMPLETIONS, prompt="abc", taps=READ, **fields)["param"] == "taps"
    taps = {"attention": [0], "residual": [0]}
    error = served.refused(CHAT, messages=[{"role": "user", "content": "x" * 480}], taps=taps)
    assert error["message"].startswith("taps would tell 266240 numbers, more than 262144")
