"""Tool calls in answers, cut at every character and at random; json.loads is the reference."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_jax.text.tool_calls import TOOL_CALL_PARSERS, ToolCallReader

NAMES = ("f", "get_weather")
F = {"city": 'a "}{" \\ é</tool_call>', "n": [1, {"x": None}], "t": -1.5e3}
ARGUMENTS = json.dumps(F)
CALL = json.dumps({"name": "f", "arguments": F})
OTHER = '{"name": "get_weather", "parameters": {}}'
MARKS = ["<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]"]


def read(name, pieces):
    """What an answer in these pieces is told to be: content, and (name, arguments) of each call."""
    reader = ToolCallReader(TOOL_CALL_PARSERS[name], NAMES)
    parts = [part for piece in pieces for part in reader.feed(piece)] + reader.finish()
    content = "".join(part.text for part in parts if part.kind == "content")
    calls = {}
    for part in parts:
        if part.kind == "call":
            assert part.call == len(calls)
            calls[part.call] = [part.text, ""]
        elif part.kind == "arguments":
            calls[part.call][1] += part.text
    assert len(calls) == reader.num_calls
    return content, [(call, arguments) for call, arguments in calls.values()]


def everywhere(name, text):
    """The reading of the whole text, which must not depend on where it is cut."""
    whole = read(name, [text])
    assert read(name, text) == whole, "character by character"
    for cut in range(len(text)):
        assert read(name, [text[:cut], text[cut:]]) == whole, f"cut at {cut}"
    return whole


@pytest.mark.parametrize(
    "name, text, content, calls",
    [
        ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", ["f"]),
        ("hermes", f"Well.\n\n<tool_call>{CALL}</tool_call>", "Well.", ["f"]),
        ("hermes", f"<tool_call>{CALL}</tool_call>\n<tool_call>{OTHER}</tool_call>", "", NAMES),
        ("hermes", f"<tool_call>{CALL}</tool_call> Done", " Done", ["f"]),
        ("hermes", f"<tool_call>{CALL}", "", ["f"]),
        ("llama3_json", CALL, "", ["f"]),
        ("llama3_json", f"<|python_tag|>{CALL}; {OTHER}", "", NAMES),
        ("llama3_json", f"\n{CALL}\n", "", ["f"]),
        ("mistral", f"[TOOL_CALLS] [{CALL}, {OTHER}]", "", NAMES),
        ("mistral", f"Hm [TOOL_CALLS]f{ARGUMENTS}[TOOL_CALLS]get_weather[ARGS]{{}}", "Hm", NAMES),
        ("mistral", f"[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{ARGUMENTS}", "", ["f"]),
    ],
)
def test_calls_are_found_wherever_the_text_is_cut(name, text, content, calls):
    said, found = everywhere(name, text)
    assert said == content and [call for call, _ in found] == list(calls)
    for call, arguments in found:
        assert json.loads(arguments) == (F if call == "f" else {})


@pytest.mark.parametrize("name", TOOL_CALL_PARSERS)
@pytest.mark.parametrize(
    "text",
    [
        "Plain < text [TOOL_ <tool",
        " leading and trailing \n",
        "<tool_call>",
        "<tool_call>no json</tool_call>",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"nam',
        "[TOOL_CALLS]unknown{}",
        "[TOOL_CALLS]f",
        '{"answer": 42}',
        '{"name": "f"',
        "{}",
        '<|python_tag|>brave_search.call(query="x")',
        "[1, 2]",
    ],
)
def test_what_is_no_call_stays_text_to_the_letter(name, text):
    assert everywhere(name, text) == (text, [])


@pytest.mark.parametrize(
    "call, arguments",
    [
        ('{"arguments": {"x": 1}, "name": "f"}', '{"x": 1}'),
        ('{"type": "function", "name": "f", "parameters": {"x": 1}}', '{"x": 1}'),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', '{"x": 1}'),
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"name": "f", "arguments": { "x" : 1 } }', '{ "x" : 1 }'),
    ],
)
def test_spellings_of_a_call(call, arguments):
    assert everywhere("hermes", f"<tool_call>{call}</tool_call>") == ("", [("f", arguments)])
    assert everywhere("llama3_json", call) == ("", [("f", arguments)])


def test_arguments_are_told_while_they_are_written():
    reader = ToolCallReader(TOOL_CALL_PARSERS["hermes"], NAMES)
    begun = reader.feed('<tool_call>{"name": "f", "arguments": {"city": "Os')
    assert [(part.kind, part.text) for part in begun] == [
        ("call", "f"),
        ("arguments", '{"city": "Os'),
    ]
    assert [part.text for part in reader.feed("lo")] == ["lo"]


def test_call_that_breaks_off_is_followed_by_the_next():
    text = f'<tool_call>{{"name": "f", "arguments": {{"x": 1</tool_call><tool_call>{CALL}'
    content, calls = everywhere("hermes", text)
    assert content == "" and calls == [("f", '{"x": 1'), ("f", ARGUMENTS)]


def test_nesting_has_a_limit():
    deep = '{"name": "f", "arguments": ' + '{"x":' * 100_000
    content, calls = read("llama3_json", [deep])
    assert len(calls) == 1 and calls[0][1].count("{") < 64 and "x" in content


@given(
    name=st.sampled_from(sorted(TOOL_CALL_PARSERS)),
    pieces=st.lists(
        st.sampled_from([*MARKS, CALL, OTHER, ARGUMENTS, CALL[:30], *'{}[],;:"\\ \nfx']), max_size=9
    ),
    cuts=st.lists(st.integers(0, 400), max_size=5),
)
@settings(max_examples=600, deadline=None)
def test_reading_does_not_depend_on_the_cuts(name, pieces, cuts):
    text = "".join(pieces)
    ends = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [text[start:end] for start, end in pairwise(ends)]
    assert read(name, parts) == read(name, [text]) == read(name, text)
