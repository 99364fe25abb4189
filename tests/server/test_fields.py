"""What is refused, and how: the field is named, the type is strict, large input is not echoed."""

import pytest
from served_engine import Served

COMPLETIONS = "/v1/completions"
WRONG = {
    "max_tokens": [-1, 0, 1.0, "5", True, [], 513, 10**12, 2**63],
    "n": [0, -1, 1.5, "2", True, 129, 2**63 - 1, 2**70],
    "temperature": [-0.1, 2.1, "hot", [], True],
    "top_p": [-0.1, 1.1, "x"],
    "top_k": [-2, 1.5, "x"],
    "min_p": [-0.1, 1.1],
    "presence_penalty": [-2.1, "x"],
    "frequency_penalty": [2.1, "x"],
    "repetition_penalty": [0, -1, "x"],
    "seed": [2**64, 1.5, "x"],
    "stop": ["", [""], ["a", "b", "c", "d", "e"], 5, [5], [["a"]], {}],
    "stop_token_ids": [[-1], ["x"], 5, [1.0], [True]],
    "ignore_eos": ["perhaps", 1],
    "min_tokens": [-1, 17, "x"],
    "logit_bias": [
        {"x": 1}, {"-1": 1}, {"5": "x"}, {"5": None}, [], dict.fromkeys(map(str, range(2000)), 1),
    ],
    "logprobs": [-1, 21, "x", True, 10**9],
    "prompt_logprobs": [-1, 21, "x"],
    "echo": ["perhaps", 1],
    "stream": ["perhaps", 7],
    "stream_options": [{}, {"include_usage": True}, "x"],
    "model": [5, []],
    "prompt": [
        None, "", [], [[]], {}, 5, [1, "a"], [[1], ["a"]], ["a", [1]], ["a", ""], [[1, 2], []],
        [-1], [257], [2**70], [1.5], [True], [None], [[[1]]],
    ],
    "truncate_prompt_tokens": [-2, 0, 513, "x"],
    "truncation_side": ["middle", 5],
    "cache_salt": ["", "x" * 129, 5],
    "priority": ["x", 2**63],
    "request_id": [5, "", "x" * 129, "a b", "a\nb", "é"],
    "add_special_tokens": ["perhaps"],
    "return_token_ids": ["perhaps"],
    "response_format": [
        "json", {}, {"type": "yaml"}, {"type": "json_schema"},
        {"type": "json_schema", "schema": {}},
        {"type": "json_schema", "json_schema": {"schema": []}},
        {"type": "json_schema", "json_schema": {"schema": {}}},
    ],
    "suffix": ["tail", 5],
    "best_of": [2, True, "x"],
    "use_beam_search": ["x", 0],
    "allowed_token_ids": [[], "x", [-1], [1.5], [1] * 1025],
    "bad_words": [[""], 5, ["x" * 257], ["x"] * 129],
    "structured_outputs": [
        {}, {"regex": "a", "choice": ["a"]}, {"choice": []}, {"choice": [""]}, {"regex": ""},
        {"json_object": False}, {"json": []}, {"json": "[1]"}, {"json": "{"}, {"json": {}},
        {"structural_tag": {}}, {"regex": "x" * (1 << 17)}, {"grammar": 5}, "x",
    ],
    "guided_json": [{}],
    "logprob_token_ids": [[5]],
    "logits_processors": [["x"]],
    "prompt_embeds": ["AAAA"],
}  # fmt: skip
CASES = [(name, value) for name, values in WRONG.items() for value in values]


@pytest.mark.parametrize("name, value", CASES, ids=lambda value: ascii(value)[:30])
def test_wrong_value_is_refused_and_named(served: Served, name, value):
    error = served.refused(COMPLETIONS, **{"prompt": "ab", name: value})
    assert error["param"].split(".")[0] == name and error["type"] == "BadRequestError"


@pytest.mark.parametrize("value", ["perhaps", 1])
def test_wrong_stream_option_is_named(served: Served, value):
    options = {"include_usage": value}
    error = served.refused(COMPLETIONS, prompt="a", stream=True, stream_options=options)
    assert error["param"] == "stream_options.include_usage"


def test_prompt_logprobs_in_a_stream_are_refused(served: Served):
    error = served.refused(COMPLETIONS, prompt="a", stream=True, prompt_logprobs=1)
    assert error["param"] == "prompt_logprobs"


def test_missing_prompt_is_named(served: Served):
    assert served.refused(COMPLETIONS)["param"] == "prompt"


@pytest.mark.parametrize("prompts, n", [(1025, 1), (9, 128)])
def test_too_many_choices_are_refused(served: Served, prompts, n):
    error = served.refused(COMPLETIONS, prompt=["x"] * prompts, n=n)
    assert error["param"] == "prompt" and "1024" in error["message"]


def test_long_prompt_is_refused_with_the_figures(served: Served):
    error = served.refused(COMPLETIONS, prompt=[97] * 600)
    assert "512" in error["message"] and "600" in error["message"]


def test_text_that_cannot_fit_is_refused_before_it_is_tokenised(served: Served):
    """The longest token has 7 characters, so 10**6 characters are 142,858 tokens or more."""
    error = served.refused(COMPLETIONS, prompt="x" * 10**6)
    assert "512" in error["message"] and "at least 142858 tokens" in error["message"]


def test_large_input_is_not_echoed(served: Served):
    for value in ("y" * 100_000, ["y"] * 100_000, {"y" * 100_000: 1}):
        assert len(served.refused(COMPLETIONS, prompt="a", temperature=value)["message"]) < 300
        assert len(served.refused(COMPLETIONS, prompt="a", echo=value)["message"]) < 300


def test_length_limits_themselves_are_legal(served: Served):
    assert served.complete("ab", max_tokens=512)["usage"]["total_tokens"] >= 512
    served.complete("a", cache_salt="x" * 128, priority=-(2**63), seed=2**63 - 1, max_tokens=1)
    served.complete("a", logprobs=20, prompt_logprobs=20, n=128, max_tokens=1)


@pytest.mark.parametrize("header", ["", "x" * 129, "a\tb", "a b"])
def test_odd_request_id_header_is_refused(served: Served, header):
    headers = {"X-Request-Id": header}
    response = served.http.post(COMPLETIONS, json={"prompt": "a"}, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "X-Request-Id"
