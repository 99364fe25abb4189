"""POST /v1/chat/completions, unstreamed; the template writes `role:content;` and `assistant:`."""

import pytest
from served_engine import Served

CHAT = "/v1/chat/completions"
TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]


def test_answer_has_openais_shape(served: Served):
    body = served.chat("Hi", max_tokens=4)
    assert body["id"].startswith("chatcmpl-") and body["object"] == "chat.completion"
    (choice,) = body["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "user", "refusal": None},
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }
    assert body["usage"]["prompt_tokens"] == len("user:Hi;assistant:")


def test_answer_fills_the_context_by_default(served: Served):
    assert served.chat("Hi")["usage"]["total_tokens"] == 512


def test_max_completion_tokens_wins_over_max_tokens(served: Served):
    body = served.chat("Hi", max_tokens=9, max_completion_tokens=2)
    assert body["usage"]["completion_tokens"] == 2
    error = served.refused(CHAT, messages=TALK, max_completion_tokens=2, max_tokens="x")
    assert error["param"] == "max_tokens"


def test_continued_message_is_left_open_and_echoed(served: Served):
    body = served.chat(TALK, continue_final_message=True, echo=True, max_tokens=4)
    assert body["usage"]["prompt_tokens"] == len("user:Hi;assistant:Well")
    assert body["choices"][0]["message"]["content"] == "Welluser"


def test_echo_of_a_user_message_is_nothing(served: Served):
    body = served.chat("Hi", echo=True, max_tokens=4)
    assert body["choices"][0]["message"]["content"] == "user"


def test_generation_prompt_may_be_left_out(served: Served):
    body = served.chat("Hi", add_generation_prompt=False, max_tokens=1)
    assert body["usage"]["prompt_tokens"] == len("user:Hi;")


def test_continuing_and_opening_exclude_each_other(served: Served):
    both = {"continue_final_message": True, "add_generation_prompt": True}
    assert served.refused(CHAT, messages=TALK, **both)["param"] == "continue_final_message"


def test_template_variables_and_shown_tools_reach_the_template(served: Served):
    tool = {"type": "function", "function": {"name": "clock"}}
    fields = {"tools": [tool], "tool_choice": "none", "chat_template_kwargs": {"x": 1}}
    body = served.chat("Hi", max_tokens=1, reasoning_effort="low", **fields)
    expected = "clock;reasoning_effort=low;x=1;user:Hi;assistant:"
    assert body["usage"]["prompt_tokens"] == len(expected)


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tool_choice"),
        ({"tools": [{"type": "function"}], "tool_choice": "none"}, "tools"),
        ({"tools": "weather"}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 513}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": [5]}, "messages"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
    ],
    ids=str,
)
def test_field_at_fault_is_named(served: Served, fields, param):
    assert served.refused(CHAT, **{"messages": TALK} | fields)["param"] == param


def test_empty_tools_and_unasked_logprobs_are_nothing(served: Served):
    served.chat("Hi", tools=[], tool_choice="none", top_logprobs=0, max_tokens=1)


def test_token_ids_are_returned_on_request(served: Served):
    body = served.chat("Hi", max_tokens=2, return_token_ids=True)
    assert body["prompt_token_ids"] == list(b"user:Hi;assistant:")
    assert body["choices"][0]["token_ids"] == list(b"us")
