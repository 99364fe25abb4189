"""/v1/responses; the engine repeats the prompt, whose first words are the user's."""

import dataclasses
import json

import openai
import pytest
from fake_engine import FakeEngine
from served_engine import SETTINGS, Served, serve

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
ANSWER = f"think</think>Well {CALL}<|end|>"
FINAL = ["response.output_item.done", "response.completed"]


@pytest.fixture(scope="module")
def agent():
    settings = dataclasses.replace(
        SETTINGS, tool_call_parser="hermes", reasoning_parser="deepseek_r1"
    )
    yield from serve(FakeEngine(), settings)


@pytest.fixture(scope="module")
def sdk(agent: Served):
    base_url = str(agent.http.base_url).rstrip("/") + "/v1"
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


def ask(served: Served, given, **body):
    response = served.post(PATH, input=given, **body)
    assert response.status_code == 200, response.text
    return response.json()


def events_of(served: Served, given, **body):
    response = served.post(PATH, input=given, stream=True, **body)
    *blocks, end = response.text.split("\n\n")
    pairs = [block.split("\n") for block in blocks]
    assert end == "" and all(len(pair) == 2 for pair in pairs)
    events = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [name.removeprefix("event: ") for name, _ in pairs] == [e["type"] for e in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def test_text_in_text_out(served: Served):
    body = ask(served, "Hi", max_output_tokens=4, metadata={"a": "b"}, instructions="Be")
    assert body["id"].startswith("resp_") and body["object"] == "response"
    assert body["status"] == "incomplete" and body["model"] == "fake"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    (item,) = body["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "incomplete")
    assert item["content"][0]["text"] == "syst" and item["content"][0]["type"] == "output_text"
    assert body["usage"]["input_tokens"] == len("system:Be;user:Hi;assistant:")
    assert body["usage"]["output_tokens"] == 4 and body["usage"]["total_tokens"] == 32
    assert body["metadata"] == {"a": "b"} and body["instructions"] == "Be"


def test_every_kind_of_item_is_told(agent: Served):
    body = ask(agent, ANSWER, tools=[TOOL])
    reasoning, message, call = body["output"]
    assert body["status"] == "completed" and body["tools"] == [TOOL]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "f;user:think"}]
    assert message["content"][0]["text"] == "Well"
    assert (call["name"], call["arguments"]) == ("f", '{"x": 1}') and call["call_id"]


def test_stream_ends_with_the_whole(agent: Served):
    events = events_of(agent, ANSWER, tools=[TOOL])
    whole = ask(agent, ANSWER, tools=[TOOL])
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-2:] == FINAL
    last = events[-1]["response"]
    assert last["usage"] == whole["usage"] and last["status"] == "completed"
    for item, other in zip(last["output"], whole["output"], strict=True):
        for name in ("type", "content", "arguments", "status"):
            assert item.get(name) == other.get(name)
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == last["output"]


def test_deltas_join_to_what_is_done(agent: Served):
    events = events_of(agent, ANSWER, tools=[TOOL])
    for kind, field in (
        ("output_text", "text"),
        ("reasoning_text", "text"),
        ("function_call_arguments", "arguments"),
    ):
        deltas = [e["delta"] for e in events if e["type"] == f"response.{kind}.delta"]
        (done,) = [e for e in events if e["type"] == f"response.{kind}.done"]
        assert "".join(deltas) == done[field] and len(deltas) > 1


def test_conversation_is_sent_as_items(agent: Served):
    talk = [
        {"role": "developer", "content": "Be"},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "R"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "d", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "7"},
    ]
    body = ask(agent, talk, max_output_tokens=1)
    expected = 'developer:Be;user:Hi;assistant:RAf{"x": 1}g{};tool:7;assistant:'
    assert body["usage"]["input_tokens"] == len(expected)


def test_empty_answer_is_an_empty_message(served: Served):
    body = ask(served, "Hi", max_output_tokens=9, stop_token_ids=[ord("u")])
    assert body["output"][0]["content"][0]["text"] == "" and body["status"] == "completed"


def test_failure_within_a_stream_is_an_event(slow: Served):
    slow.engine.fail_after = 3
    last = events_of(slow, "Hi")[-1]
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert "Boom" in last["response"]["error"]["message"]


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**9}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [TOOL | {"strict": True}]}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input"),
        ({"input": [{"role": "user"}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input"),
        ({"input": [{"type": "reasoning", "content": [5]}]}, "input"),
        ({"input": "x" * 600}, "input"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_field_at_fault_is_named_as_it_is_called_here(agent: Served, fields, param):
    assert agent.refused(PATH, **{"input": "Hi"} | fields)["param"] == param


def test_form_reaches_the_engine_and_is_told(agent: Served):
    form = {"format": {"type": "json_schema", "name": "s", "schema": {"type": "null"}}}
    body = ask(agent, "Hi", text=form, max_output_tokens=1)
    wanted = agent.engine.asked[-1][0].structured_outputs
    assert json.loads(wanted.json) == {"type": "null"} and wanted.after_reasoning
    assert body["text"] == form


def test_sdk_whole(sdk):
    answer = sdk.responses.create(model="fake", input=ANSWER, tools=[TOOL])
    assert answer.output_text == "Well" and answer.usage.output_tokens > 0
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]


def test_sdk_streamed(sdk):
    with sdk.responses.stream(model="fake", input=ANSWER) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text.startswith("Well") and "response.output_text.delta" in kinds


def test_sdk_sends_the_output_back(sdk):
    said = ANSWER.removesuffix("<|end|>")
    talk, size = [{"role": "user", "content": said}], len("f;user:" + said)
    first = sdk.responses.create(model="fake", input=talk, tools=[TOOL], max_output_tokens=size)
    talk += [item.model_dump(exclude_none=True) for item in first.output]
    call_id = first.output[2].call_id
    talk.append({"type": "function_call_output", "call_id": call_id, "output": "7"})
    second = sdk.responses.create(model="fake", input=talk, tools=[TOOL], max_output_tokens=1)
    extra = f'{first.output[0].content[0].text}Wellf{{"x": 1}};tool:7;assistant:'
    assert second.usage.input_tokens == first.usage.input_tokens + len(extra)
