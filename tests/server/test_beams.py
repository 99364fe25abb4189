"""`use_beam_search` through HTTP: what reaches the engine, and what is refused beside it."""

import pytest
from served_engine import Served, messages_of

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_beams_reach_the_engine(served: Served, path):
    own = {"prompt": "ab"} if path == TEXT else {"messages": messages_of("ab")}
    fields = {"use_beam_search": True, "n": 3, "max_tokens": 4, "length_penalty": 2, "top_p": 0.5}
    body = served.post(path, **own, **fields).json()
    params, *_ = served.engine.asked[-1]
    assert params.beams.length_penalty == 2 and params.beams.beam_width == params.n == 3
    assert params.is_greedy and params.max_tokens == 4 and params.logprobs == 0
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert all(choice["logprobs"] is None for choice in body["choices"])


@pytest.mark.parametrize(
    "name, value",
    [
        ("stream", True), ("stop", "a"), ("stop_token_ids", [1]), ("logit_bias", {"1": 1}),
        ("presence_penalty", 1), ("frequency_penalty", 1), ("repetition_penalty", 1.1),
        ("min_tokens", 1), ("allowed_token_ids", [1]), ("bad_words", ["a"]), ("n", 0),
        ("response_format", {"type": "json_object"}), ("structured_outputs", {"regex": "a"}),
        ("prompt_logprobs", 1), ("length_penalty", 11), ("length_penalty", "x"),
    ],
)  # fmt: skip
def test_what_beams_cannot_have_is_refused_and_named(served: Served, name, value):
    fields = {"prompt": "ab", "use_beam_search": True, "n": 2, "max_tokens": 4} | {name: value}
    assert served.refused(TEXT, **fields)["param"] == name


def test_values_that_ask_for_nothing_are_fine_beside_beams(served: Served):
    nothing = {"stop": [], "presence_penalty": 0, "repetition_penalty": 1.0, "stream": False}
    served.complete("ab", use_beam_search=True, n=2, max_tokens=2, **nothing)
