"""POST /v1/completions, unstreamed."""

import pytest
from served_engine import Served

from paged_jax.outputs import RequestDelta
from server.generation import Usage


def text_of(body, index=0):
    return body["choices"][index]["text"]


def test_answer_has_openais_shape(served: Served):
    body = served.complete("abc", max_tokens=4)
    assert body["id"].startswith("cmpl-") and body["object"] == "text_completion"
    assert body["model"] == "fake" and body["created"] > 1_600_000_000
    (choice,) = body["choices"]
    assert choice == {
        "index": 0,
        "text": "abca",
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }
    assert body["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 7,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.mark.parametrize("prompt", ["ab", ["ab"], [97, 98], [[97, 98]]], ids=str)
def test_all_forms_of_a_prompt_are_equal(served: Served, prompt):
    assert text_of(served.complete(prompt, max_tokens=3)) == "aba"


def test_choices_are_numbered_prompt_by_prompt(served: Served):
    body = served.complete(["ab", "xyz"], n=2, max_tokens=2)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in body["choices"]] == ["ab", "ba", "xy", "yz"]
    assert body["usage"]["prompt_tokens"] == 5 and body["usage"]["completion_tokens"] == 8


def test_max_tokens_is_16_by_default_and_null_is_absent(served: Served):
    assert served.complete("a")["usage"]["completion_tokens"] == 16
    body = served.complete("a", max_tokens=None, temperature=None, stop=None, model=None)
    assert body["usage"]["completion_tokens"] == 16


def test_end_token_stops_and_is_counted_but_not_shown(served: Served):
    body = served.complete("ab<|end|>c", max_tokens=9)
    assert text_of(body) == "ab" and body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 3


def test_stop_token_is_the_stop_reason(served: Served):
    (choice,) = served.complete("abc", max_tokens=9, stop_token_ids=[99])["choices"]
    assert (choice["text"], choice["stop_reason"]) == ("ab", 99)


def test_echo_puts_the_prompt_first_for_every_choice(served: Served):
    body = served.complete(["ab", "x"], n=2, echo=True, max_tokens=1)
    assert [choice["text"] for choice in body["choices"]] == ["aba", "abb", "xx", "xx"]


def test_echo_of_ids_shows_special_tokens(served: Served):
    body = served.complete([97, 256], echo=True, max_tokens=1, ignore_eos=True)
    assert text_of(body) == "a<|end|>a"


@pytest.mark.parametrize("side, kept", [(None, "de"), ("left", "de"), ("right", "ab")])
def test_truncation_keeps_the_side_asked_for(served: Served, side, kept):
    fields = {"truncate_prompt_tokens": 2, "truncation_side": side, "echo": True}
    body = served.complete("abcde", max_tokens=1, **fields)
    assert text_of(body) == kept + kept[0] and body["usage"]["prompt_tokens"] == 2


def test_truncation_of_minus_one_keeps_what_fits(served: Served):
    body = served.complete([97] * 600, truncate_prompt_tokens=-1, max_tokens=5)
    assert body["usage"]["prompt_tokens"] == 511


def test_token_ids_are_returned_on_request(served: Served):
    (choice,) = served.complete("ab", max_tokens=3, return_token_ids=True)["choices"]
    assert choice["prompt_token_ids"] == [97, 98] and choice["token_ids"] == [97, 98, 97]


@pytest.mark.parametrize("name", ["fake", "alias"])
def test_every_served_name_is_answered_under_the_first(served: Served, name):
    assert served.complete("a", model=name, max_tokens=1)["model"] == "fake"


def test_request_id_names_the_answer_and_the_header_wins(served: Served):
    assert served.complete("a", max_tokens=1, request_id="r7")["id"] == "cmpl-r7"
    body = {"prompt": "a", "max_tokens": 1, "request_id": "r7"}
    response = served.http.post("/v1/completions", json=body, headers={"X-Request-Id": "h8"})
    assert response.json()["id"] == "cmpl-h8"


def test_one_request_id_may_be_used_by_several_requests_at_once(slow: Served):
    events = [slow.stream(["ab", "cd"], request_id="same", max_tokens=2) for _ in range(2)]
    assert {event["id"] for answer in events for event in answer} == {"cmpl-same"}


def test_harmless_fields_change_nothing(served: Served):
    plain = {"user": "ann", "metadata": {"a": "b"}, "store": True, "no_such_field": 1}
    asked_for_nothing = {
        "response_format": {"type": "text"},
        "use_beam_search": False,
        "suffix": None,
        "best_of": 1,
        "bad_words": [],
    }
    body = served.complete("abc", max_tokens=4, **plain, **asked_for_nothing)
    assert text_of(body) == "abca"


@pytest.mark.parametrize(
    "fields, kind",
    [
        ({"response_format": {"type": "json_object"}}, "json_object"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": 1}}}}, "json"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice"),
        ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}}, "regex"),
    ],
)
def test_form_of_the_answer_reaches_the_engine(served: Served, fields, kind):
    served.complete("ab", max_tokens=1, **fields)
    wanted = served.engine.asked[-1][0].structured_outputs
    assert wanted.kind == kind and wanted.after_reasoning is None


def test_fields_reach_the_engine(served: Served):
    fields = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": -5, "stop": "zz",
        "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.5, "min_tokens": 1,
        "allowed_token_ids": [97, 98], "bad_words": ["x"],
        "logit_bias": {"5": 1}, "include_stop_str_in_output": True, "skip_special_tokens": False,
    }  # fmt: skip
    served.complete("ab", max_tokens=2, priority=-3, cache_salt="salt", **fields)
    params, priority, salt = served.engine.asked[-1]
    assert (priority, salt) == (-3, "salt")
    expected = fields | {"stop": ("zz",), "logit_bias": {5: 1}}
    expected |= {"allowed_token_ids": (97, 98), "bad_words": ("x",)}
    assert {name: getattr(params, name) for name in fields} == expected


def test_defaults_of_the_model_hold_where_the_request_is_silent(slow: Served):
    slow.engine.default_sampling = {"temperature": 0.6, "top_k": 20, "max_tokens": 3}
    slow.complete("ab", top_k=5)
    params, *_ = slow.engine.asked[-1]
    assert (params.temperature, params.top_k, params.max_tokens) == (0.6, 5, 16)
    assert slow.chat("ab")["usage"]["completion_tokens"] == 3


def test_unicode_is_sent_as_it_is(served: Served):
    response = served.post("/v1/completions", prompt="é😀", max_tokens=6)
    assert "é😀" in response.text


def test_replaced_parameters_show_in_the_fingerprint() -> None:
    usage = Usage(num_prompt=1)
    assert "system_fingerprint" not in usage.told()
    usage.absorb(0, RequestDelta("a", (), finished=True, weights_version=2))
    assert usage.told()["system_fingerprint"] == "weights-2"
