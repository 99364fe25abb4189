"""Log-probabilities of both endpoints. Token t has -t/64, `!` has minus infinity."""

import pytest
from served_engine import Served

COMPLETIONS = "/v1/completions"


def logprobs_of(body):
    return body["choices"][0]["logprobs"]


def test_completion_lists_the_chosen_and_the_likeliest(served: Served):
    logprobs = logprobs_of(served.complete("@!", max_tokens=2, logprobs=2))
    assert logprobs == {
        "tokens": ["@", "!"],
        "token_logprobs": [-1.0, -9999.0],
        "top_logprobs": [
            {"@": -1.0, "\x00": 0.0, "\x01": -1 / 64},
            {"!": -9999.0, "\x00": 0.0, "\x01": -1 / 64},
        ],
        "text_offset": [0, 1],
    }


def test_zero_alternatives_is_not_off(served: Served):
    logprobs = logprobs_of(served.complete("@", max_tokens=2, logprobs=0))
    assert logprobs["token_logprobs"] == [-1.0, -1.0]
    assert logprobs["top_logprobs"] == [{"@": -1.0}] * 2


def test_echoed_prompt_has_logprobs_without_a_first(served: Served):
    logprobs = logprobs_of(served.complete("@ab", max_tokens=1, echo=True, logprobs=1))
    assert logprobs["tokens"] == ["@", "a", "b", "@"]
    assert logprobs["token_logprobs"] == [None, -97 / 64, -98 / 64, -1.0]
    assert logprobs["top_logprobs"][0] is None and len(logprobs["top_logprobs"][1]) == 2
    assert logprobs["text_offset"] == [0, 1, 2, 3]


@pytest.mark.parametrize("stream", [False, True])
def test_scoring_returns_the_prompt_alone(served: Served, stream):
    fields = {"max_tokens": 0, "echo": True, "logprobs": 1}
    if stream:
        options = {"stream_options": {"include_usage": True}}
        *chunks, last = served.stream(["@ab", "c<|end|>"], **fields, **options)
        choices = sorted((c["choices"][0] for c in chunks), key=lambda choice: choice["index"])
        choices, usage = choices[::2], last["usage"]
    else:
        body = served.complete(["@ab", "c<|end|>"], **fields)
        choices, usage = body["choices"], body["usage"]
    assert [choice["text"] for choice in choices] == ["@ab", "c<|end|>"]
    assert choices[0]["logprobs"]["token_logprobs"] == [None, -97 / 64, -98 / 64]
    assert usage["completion_tokens"] == 0


def test_scoring_ends_with_length(served: Served):
    body = served.complete("a<|end|>", max_tokens=0, echo=True)
    assert body["choices"][0]["finish_reason"] == "length"
    assert served.refused(COMPLETIONS, prompt="a", max_tokens=0)["param"] == "max_tokens"


def test_prompt_logprobs_have_vllms_shape(served: Served):
    (choice,) = served.complete("@a", max_tokens=1, prompt_logprobs=1)["choices"]
    assert choice["logprobs"] is None
    assert choice["prompt_logprobs"] == [
        None,
        {
            "97": {"logprob": -97 / 64, "rank": 98, "decoded_token": "a"},
            "0": {"logprob": 0.0, "rank": 1, "decoded_token": "\x00"},
        },
    ]


def test_prompt_logprobs_and_echo_keep_their_own_counts(served: Served):
    fields = {"echo": True, "logprobs": 0, "prompt_logprobs": 2}
    (choice,) = served.complete("ab", max_tokens=1, **fields)["choices"]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:]] == [1, 1]
    assert len(choice["prompt_logprobs"][1]) == 3


def test_chat_prompt_logprobs_stand_beside_the_choices(served: Served):
    body = served.chat("Hi", max_tokens=1, prompt_logprobs=0, echo=True, logprobs=True)
    assert body["prompt_logprobs"][0] is None
    assert list(body["prompt_logprobs"][1]) == [str(ord("s"))]


@pytest.mark.parametrize("stream", [False, True])
def test_chat_entries_have_bytes_and_exactly_the_likeliest(served: Served, stream):
    fields = {"max_tokens": 1, "logprobs": True, "top_logprobs": 1}
    if stream:
        chunks = served.stream("Hi", chat=True, **fields)
        entries = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
        (logprobs,) = entries
    else:
        logprobs = logprobs_of(served.chat("Hi", **fields))
    best = {"token": "\x00", "logprob": 0.0, "bytes": [0]}
    entry = {"token": "u", "logprob": -117 / 64, "bytes": [117], "top_logprobs": [best]}
    assert logprobs == {"content": [entry]}


def test_chat_without_alternatives_has_empty_lists(served: Served):
    for fields in ({}, {"top_logprobs": 0}):
        body = served.chat("Hi", max_tokens=2, logprobs=True, **fields)
        assert [e["top_logprobs"] for e in logprobs_of(body)["content"]] == [[], []]


def test_parts_of_a_character_keep_their_bytes(served: Served):
    whole = served.chat([{"role": "é", "content": "x"}], max_tokens=2, logprobs=True)
    entries = logprobs_of(whole)["content"]
    assert [entry["token"] for entry in entries] == ["\ufffd", "\ufffd"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == "é"
    assert whole["choices"][0]["message"]["content"] == "é"


def test_tokens_may_be_spelt_as_ids(served: Served):
    fields = {"logprobs": 0, "return_tokens_as_token_ids": True, "echo": True}
    logprobs = logprobs_of(served.complete("ab", max_tokens=1, **fields))
    assert logprobs["tokens"] == ["token_id:97", "token_id:98", "token_id:97"]
