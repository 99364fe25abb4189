"""Server-sent events of both endpoints."""

import json

import pytest
from served_engine import Served

BOTH = pytest.mark.parametrize("chat", [False, True], ids=["completion", "chat"])
COMPLETIONS = "/v1/completions"


def choices_of(events):
    return [choice for event in events for choice in event["choices"]]


def text_of(choice):
    return choice["delta"]["content"] if "delta" in choice else choice["text"]


@BOTH
def test_every_chunk_has_the_same_envelope(served: Served, chat):
    events = served.stream("ab", chat=chat, max_tokens=3)
    kind = "chat.completion.chunk" if chat else "text_completion"
    assert {event["object"] for event in events} == {kind}
    for name in ("id", "created", "model"):
        assert len({event[name] for event in events}) == 1
    assert not any("usage" in event for event in events)


def test_content_type_is_an_event_stream(served: Served):
    response = served.post(COMPLETIONS, prompt="a", max_tokens=1, stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"


@BOTH
def test_pieces_join_to_the_whole_answer(served: Served, chat):
    fields = {"n": 2, "max_tokens": 30}
    whole = served.chat("é😀", **fields) if chat else served.complete("é😀", **fields)
    pieces = choices_of(served.stream("é😀", chat=chat, **fields))
    for choice in whole["choices"]:
        own = [piece for piece in pieces if piece["index"] == choice["index"]]
        expected = choice["message"]["content"] if chat else choice["text"]
        assert "".join(map(text_of, own)) == expected
        reasons = [piece["finish_reason"] for piece in own]
        assert reasons == [None] * (len(own) - 1) + [choice["finish_reason"]]


def test_first_chat_chunk_of_a_choice_is_its_role(served: Served):
    choices = choices_of(served.stream("ab", chat=True, n=2, max_tokens=2))
    role = {"role": "assistant", "content": ""}
    assert [choice["delta"] for choice in choices[:2]] == [role, role]
    assert not any("role" in choice["delta"] for choice in choices[2:])
    assert choices[-1]["stop_reason"] is None and "stop_reason" not in choices[2]


def test_held_back_text_is_not_sent_as_empty_chunks(served: Served):
    choices = choices_of(served.stream("é😀", max_tokens=6))
    assert [choice["text"] for choice in choices] == ["é", "😀"]


def test_logprobs_of_held_back_text_are_sent_at_once(served: Served):
    choices = choices_of(served.stream("😀", max_tokens=4, logprobs=0))
    assert [len(choice["logprobs"]["tokens"]) for choice in choices] == [1, 1, 1, 1]
    assert [choice["logprobs"]["text_offset"] for choice in choices] == [[0], [1], [2], [3]]


def test_echo_comes_first_with_its_logprobs(served: Served):
    choices = choices_of(served.stream(["@a", "@bc"], echo=True, logprobs=0, max_tokens=1))
    for index, prompt in enumerate(["@a", "@bc"]):
        first, second = (choice for choice in choices if choice["index"] == index)
        assert first["text"] == prompt and first["logprobs"]["token_logprobs"][0] is None
        assert second["text"] == "@" and second["logprobs"]["text_offset"] == [len(prompt)]


def test_chat_echo_follows_the_role(served: Served):
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]
    fields = {"continue_final_message": True, "echo": True, "max_tokens": 1}
    choices = choices_of(served.stream(talk, chat=True, **fields))
    assert [choice["delta"]["content"] for choice in choices] == ["", "Well", "u"]


def test_token_ids_are_streamed_on_request(served: Served):
    first, *rest = choices_of(served.stream("ab", max_tokens=2, return_token_ids=True))
    assert first["prompt_token_ids"] == [97, 98]
    assert [choice["token_ids"] for choice in rest] == [[97], [98]]
    role, *_ = served.stream("Hi", chat=True, max_tokens=1, return_token_ids=True)
    assert role["prompt_token_ids"] == list(b"user:Hi;assistant:")


@BOTH
def test_usage_is_a_last_chunk_without_choices(served: Served, chat):
    options = {"include_usage": True}
    *chunks, last = served.stream("x" * 40, chat=chat, n=2, max_tokens=3, stream_options=options)
    assert last["choices"] == [] and not any("usage" in chunk for chunk in chunks)
    fields = {"n": 2, "max_tokens": 3}
    whole = served.chat("x" * 40, **fields) if chat else served.complete("x" * 40, **fields)
    assert last["usage"] == whole["usage"] and last["usage"]["completion_tokens"] == 6
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@BOTH
def test_continuous_usage_grows_in_every_chunk(served: Served, chat):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = served.stream("ab", chat=chat, max_tokens=3, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == ([0] if chat else []) + [1, 2, 3, 3]


@BOTH
def test_known_errors_are_a_status_not_an_event(served: Served, chat):
    path = "/v1/chat/completions" if chat else COMPLETIONS
    prompt = {"messages": [{"role": "user", "content": "x" * 600}]} if chat else {"prompt": [300]}
    error = served.refused(path, stream=True, **prompt)
    assert error["param"] == ("messages" if chat else "prompt")


def test_one_bad_prompt_of_several_refuses_the_stream(served: Served):
    served.refused(COMPLETIONS, prompt=["a", "x" * 600], stream=True)


def test_failure_within_a_stream_is_an_event(slow: Served):
    slow.engine.fail_after = 2
    *chunks, failure = slow.stream(["ab", "cd"], max_tokens=9)
    assert failure["error"]["code"] == 500 and failure["error"]["type"] == "InternalServerError"
    assert len(choices_of(chunks)) >= 2 and not slow.engine.running


def test_failure_of_an_unstreamed_request_is_a_status(slow: Served):
    slow.engine.fail_after = 2
    assert "Boom" in slow.refused(COMPLETIONS, 500, prompt="ab", max_tokens=9)["message"]


def test_slow_reader_gets_every_event(slow: Served):
    body = {"prompt": "ab", "max_tokens": 20, "stream": True}
    with slow.http.stream("POST", COMPLETIONS, json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    texts = [json.loads(line[6:])["choices"][0]["text"] for line in lines[:-1]]
    assert "".join(texts) == "ab" * 10 and lines[-1] == "data: [DONE]"
