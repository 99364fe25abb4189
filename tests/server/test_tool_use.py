"""Tools and reasoning through HTTP; the engine repeats the prompt, so users write the answers."""

import dataclasses
import json

import openai
import pytest
from fake_engine import FakeEngine
from served_engine import SETTINGS, Served, messages_of, serve

from paged_jax.outputs import ChoiceDelta, RequestDelta
from server.generation import Usage

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "f", "arguments": {"x": "é"}}</tool_call>'
TWO = f"Well {CALL}\n{CALL}<|end|>"
NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.fixture(scope="module")
def agent():
    settings = dataclasses.replace(
        SETTINGS, tool_call_parser="hermes", reasoning_parser="deepseek_r1"
    )
    yield from serve(FakeEngine(), settings)


def streamed(events):
    """Reasoning, content, calls and the end of a stream of one choice."""
    choices = [event["choices"][0] for event in events]
    said = {"reasoning": "", "content": "", "calls": {}}
    for delta in (choice["delta"] for choice in choices):
        said["reasoning"] += delta.get("reasoning", "")
        said["content"] += delta.get("content", "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                said["calls"][call["index"]] = [call["function"]["name"], ""]
            said["calls"][call["index"]][1] += call["function"]["arguments"]
    return said, choices[-1]["finish_reason"]


@pytest.mark.parametrize("text", [TWO, "No call<|end|>", "<tool_call>{<|end|>"])
def test_streamed_calls_equal_the_whole(agent: Served, text):
    ask = {"tools": [TOOL], "max_tokens": 400}
    whole = agent.chat("a</think>" + text, **ask)["choices"][0]
    said, reason = streamed(agent.stream("a</think>" + text, chat=True, **ask))
    message = whole["message"]
    calls = [list(call["function"].values()) for call in message.get("tool_calls", ())]
    assert list(said["calls"].values()) == calls and reason == whole["finish_reason"]
    assert said["content"] == (message["content"] or "")
    assert said["reasoning"] == message["reasoning"] == message["reasoning_content"]


def test_calls_have_openais_shape(agent: Served):
    choice = agent.chat("a</think>" + TWO, tools=[TOOL])["choices"][0]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls" and message["content"] == "Well"
    first, second = message["tool_calls"]
    assert first["type"] == "function" and first["id"] and first["id"] != second["id"]
    assert first["function"]["name"] == "f"
    assert json.loads(first["function"]["arguments"]) == {"x": "é"}


def test_content_is_null_beside_calls_alone(agent: Served):
    message = agent.chat(f"</think>{CALL}<|end|>", tools=[TOOL])["choices"][0]["message"]
    assert message["content"] is None and len(message["tool_calls"]) == 1


def test_call_cut_off_by_length_says_so(agent: Served):
    ask = {"tools": [TOOL], "max_tokens": 70}
    choice = agent.chat("</think>" + CALL, **ask)["choices"][0]
    assert choice["finish_reason"] == "length" and len(choice["message"]["tool_calls"]) == 1


def test_parallel_calls_may_be_refused_by_the_client(agent: Served):
    ask = {"tools": [TOOL], "parallel_tool_calls": False}
    message = agent.chat("a</think>" + TWO, **ask)["choices"][0]["message"]
    assert len(message["tool_calls"]) == 1
    said, _ = streamed(agent.stream("a</think>" + TWO, chat=True, **ask))
    assert list(said["calls"]) == [0]


@pytest.mark.parametrize("fields", [{"tools": [TOOL], "tool_choice": "none"}, {}], ids=str)
def test_without_a_choice_of_tools_calls_are_text(agent: Served, fields):
    choice = agent.chat("a</think>" + TWO, **fields)["choices"][0]
    assert CALL in choice["message"]["content"] and "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


def test_logprobs_of_every_token_are_streamed(agent: Served):
    ask = {"tools": [TOOL], "max_tokens": 60, "logprobs": True, "return_token_ids": True}
    choices = [e["choices"][0] for e in agent.stream("a</think>" + TWO, chat=True, **ask)]
    entries = [len(c["logprobs"]["content"]) for c in choices if c["logprobs"]]
    assert sum(entries) == 60 == sum(len(c["token_ids"]) for c in choices)


FORM = {"response_format": {"type": "json_object"}}


def with_tool(**changes):
    return [{"type": "function", "function": {"name": "f"} | changes}]


@pytest.mark.parametrize(
    "fields, param, word",
    [
        ({"tools": [TOOL], "tool_choice": NAMED} | FORM, "response_format", "only one"),
        (
            {"tools": with_tool(parameters={"type": "null"}), "tool_choice": NAMED},
            "tools",
            "object",
        ),
        ({"tools": with_tool(name="g"), "tool_choice": NAMED}, "tool_choice", "not in tools"),
        ({"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice", "named function"),
        ({"tool_choice": "auto"}, "tool_choice", "needs tools"),
        ({"tools": [TOOL, TOOL]}, "tools", "differ"),
        ({"tools": [TOOL] * 129}, "tools", "128"),
        ({"tools": [{"type": "function"}]}, "tools", "function is needed"),
        ({"tools": [{"type": "code", "function": {"name": "f"}}]}, "tools", "type"),
        ({"tools": with_tool(name="a b")}, "tools", "name"),
        ({"tools": with_tool(name="x" * 65)}, "tools", "64"),
        ({"tools": with_tool(parameters=[])}, "tools", "object"),
        ({"tools": with_tool(strict=True)}, "tools", "strict"),
        ({"tools": with_tool(description="x" * (1 << 18))}, "tools", "262144"),
        ({"tools": with_tool(parameters=json.loads('{"a":' * 70 + "1" + "}" * 70))}, "tools", "64"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_impossible_tools_are_refused(agent: Served, fields, param, word):
    error = agent.refused(CHAT, messages=messages_of("Hi"), **fields)
    assert error["param"] == param and word in error["message"]


@pytest.mark.parametrize("choice, reason", [("required", "tool_calls"), (NAMED, "stop")])
def test_forced_call_is_a_grammar_for_the_engine(served: Served, choice, reason):
    tools = [TOOL, {"type": "function", "function": {"name": "g"}}]
    ask = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": True}
    answer = served.chat(f"{CALL}<|end|>", **ask)["choices"][0]
    assert answer["finish_reason"] == reason and len(answer["message"]["tool_calls"]) == 1
    grammar = served.engine.asked[-1][0].structured_outputs.grammar
    assert ('\\"g\\"' in grammar) == ("call)*" in grammar) == (choice == "required")


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_no_call_is_claimed_where_none_was_made(agent: Served, choice):
    ask = {"tools": [TOOL], "tool_choice": choice}
    whole = agent.chat("a</think>No call<|end|>", **ask)["choices"][0]
    assert whole["finish_reason"] == "stop" and "tool_calls" not in whole["message"]
    said, reason = streamed(agent.stream("a</think>No call<|end|>", chat=True, **ask))
    assert reason == "stop" and said["calls"] == {}


def test_form_of_a_reasoning_models_answer_comes_behind_its_reasoning(agent: Served):
    agent.chat("a", max_tokens=1, **FORM)
    assert agent.engine.asked[-1][0].structured_outputs.after_reasoning is True


def test_auto_needs_the_servers_consent(served: Served):
    error = served.refused(CHAT, messages=messages_of("Hi"), tools=[TOOL])
    assert error["param"] == "tool_choice" and "--enable-auto-tool-choice" in error["message"]


def test_reasoning_can_be_hidden(agent: Served):
    ask = {"include_reasoning": False, "max_tokens": 40}
    message = agent.chat("a</think>b<|end|>", **ask)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "b", "refusal": None}
    said, _ = streamed(agent.stream("a</think>b<|end|>", chat=True, **ask))
    assert (said["reasoning"], said["content"]) == ("", "b")


def test_reasoning_alone_leaves_no_content(agent: Served):
    message = agent.chat("abc", max_tokens=8)["choices"][0]["message"]
    assert message["reasoning"] == "user:abc" and message["content"] is None


def test_prompt_that_closes_the_reasoning_is_answered_with_content(agent: Served):
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "</think>"}]
    body = agent.chat(talk, continue_final_message=True, max_tokens=6)
    assert body["choices"][0]["message"]["content"] == "user:a"


def test_effort_none_turns_thinking_off_in_the_template(agent: Served):
    body = agent.chat("a", reasoning_effort="none", max_tokens=1)
    expected = "reasoning_effort=none;enable_thinking=False;user:a;assistant:"
    assert body["usage"]["prompt_tokens"] == len(expected)


@pytest.mark.parametrize("is_inside, tokens, count", [
    (True, [7, 7, 2, 7, 2], 3), (False, [1, 7, 2, 7], 3), (False, [7, 2, 7], 0),
])  # fmt: skip
def test_reasoning_tokens_are_counted(is_inside, tokens, count):
    for size in (1, 2, len(tokens)):
        usage = Usage(5, (1, 2), is_inside)
        for start in range(0, len(tokens), size):
            choice = ChoiceDelta(0, "", tuple(tokens[start : start + size]))
            usage.absorb(0, RequestDelta("a", (choice,), False))
        assert usage.json()["completion_tokens_details"] == {"reasoning_tokens": count}


def test_sdk_reads_calls_whole_and_streamed(agent: Served):
    base_url = str(agent.http.base_url).rstrip("/") + "/v1"
    ask = {"model": "fake", "messages": messages_of("a</think>" + TWO), "tools": [TOOL]}
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(**ask).choices[0]
        chunks = [c.choices[0] for c in client.chat.completions.create(**ask, stream=True)]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    arguments = "".join(call.function.arguments for call in calls if call.index == 1)
    assert arguments == whole.message.tool_calls[1].function.arguments
    assert [call.function.name for call in calls if call.id] == ["f", "f"]
    assert chunks[-1].finish_reason == whole.finish_reason == "tool_calls"
    assert whole.message.reasoning_content.endswith("user:a")


def test_sdk_can_send_the_calls_back(agent: Served):
    base_url = str(agent.http.base_url).rstrip("/") + "/v1"
    ask = {"model": "fake", "tools": [TOOL]}
    said = f"a</think>Well {CALL}"
    talk, size = messages_of(said), len(f"f;user:{said}".encode())
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        first = client.chat.completions.create(messages=talk, max_tokens=size, **ask)
        message = first.choices[0].message
        call_id = message.tool_calls[0].id
        talk += [message, {"role": "tool", "tool_call_id": call_id, "content": "7"}]
        second = client.chat.completions.create(messages=talk, max_tokens=1, **ask)
    extra = f"{message.reasoning}Wellf{json.dumps({'x': 'é'})};tool:7;assistant:"
    assert second.usage.prompt_tokens == first.usage.prompt_tokens + len(extra)
