import copy

import pytest
from chat_templates import CHATML, LLAMA3, QWEN, TEMPLATES
from text_makers import make_byte_level

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.text.chat_template import normalise_messages, render

NAMED = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "<b>'é'</b> & more"}}]
FUNCTION = {"name": "weather", "arguments": {"city": "Oslo", "days": 2}}
CALL = {"id": "c1", "type": "function", "function": FUNCTION}


def say(role: str, content: object, **more: object) -> dict[str, object]:
    return {"role": role, "content": content, **more}


CHATS = {
    "one": [say("user", "Hi <there> & 'you' 🌶")],
    "system": [
        say("system", " Be terse. \n"),
        say("user", "Hi"),
        say("assistant", "Yes."),
        say("user", " So?\n"),
    ],
    "thinking": [
        say("user", "Hi"),
        say("assistant", "A", reasoning_content="because"),
        say("user", "B"),
    ],
    "tools": [
        say("user", "Weather?"),
        say("assistant", "", tool_calls=[CALL]),
        say("tool", "rain", tool_call_id="c1"),
        say("user", "So?"),
    ],
    "answer": [say("user", "Hi"), say("assistant", "It is \n")],
}


@pytest.fixture(scope="module")
def reference():
    """transformers' rendering of a chat."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=make_byte_level(), **NAMED)

    def apply(template, messages, **flags):
        return tokenizer.apply_chat_template(
            copy.deepcopy(messages), chat_template=template, tokenize=False, **flags
        )

    return apply


def ours(template, messages, *, variables=None, **flags):
    return render(template, messages, variables=NAMED | (variables or {}), **flags)


@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_text_equals_transformers(reference, name, chat, tools, prompted):
    flags = {"add_generation_prompt": prompted, "tools": tools}
    expected = reference(TEMPLATES[name], CHATS[chat], **flags)
    assert ours(TEMPLATES[name], CHATS[chat], **flags) == expected


@pytest.mark.parametrize("content", ["It is", "It is ", " It is\n", "a" * 500])
@pytest.mark.parametrize("name", TEMPLATES)
def test_continued_text_equals_transformers(reference, name, content):
    chat = [say("user", "Hi"), say("assistant", content)]
    flags = {"add_generation_prompt": False, "continue_final_message": True}
    text = ours(TEMPLATES[name], chat, **flags)
    assert text == reference(TEMPLATES[name], chat, **flags)
    assert text.rstrip().endswith(content.strip())


def test_variables_reach_the_template(reference):
    expected = reference(QWEN, CHATS["one"], add_generation_prompt=True, enable_thinking=False)
    assert ours(QWEN, CHATS["one"], variables={"enable_thinking": False}) == expected
    assert expected.endswith("</think>\n\n")


@pytest.mark.parametrize(
    "template",
    [
        "{{ {'b': '<é>', 'a': [1, 2.5, none]} | tojson(indent=2, sort_keys=true) }}",
        "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
        "  {% if true %}  \n x {% endif %}\n y",
        "{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a ~ '!' ~ none }}",
        "{{ ['a', 'b'] | join('-') }}{{ 'aXb' | replace('X', 'yy') }}{{ 'p\nq' | indent(2) }}",
        "{{ messages | map(attribute='role') | join(', ') }}{{ '%s %03d' | format('a', 7) }}",
        "{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(1) }}{{ '{:>4}'.format('a') }}{{ 2 ** 10 }}",
        "{{ dict(a=1).items() | list }}{{ ''.join(['a', 'b']) }}{{ 'a,b'.split(',')[-1] }}",
        "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x is defined }}",
        "{{ messages[0].missing }}|{{ bos_token }}|{{ documents is none }}|{{ 'x' * 3 }}",
        "{{ [1, 'a', {'b': none}] }}{{ strftime_now('%%') }}{{ 'é<' | e }}{{ 5 // 2 % 2 }}",
    ],
)
def test_template_language_equals_transformers(reference, template):
    chat = CHATS["system"]
    assert ours(template, chat) == reference(template, chat, add_generation_prompt=True)


def test_template_may_refuse_with_its_own_words():
    chat = [say("user", "Hi"), say("assistant", "", tool_calls=[CALL, CALL])]
    with pytest.raises(InvalidRequest, match="only supports single tool-calls") as refusal:
        ours(LLAMA3, chat)
    assert refusal.value.param == "messages"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% if %}", "malformed: Expected an expression"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ missing.name }}", "'missing' is undefined"),
        ("{{ f() }}", "'f' is undefined"),
        ("{{ messages | unheard }}", "malformed: No filter named 'unheard'"),
    ],
)
def test_failing_template_is_an_invalid_request(template, message):
    with pytest.raises(InvalidRequest, match=message):
        ours(template, CHATS["one"])


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_text_parts_are_joined_in_order_for_every_role(role):
    parts = [{"type": "text", "text": "You are "}, {"type": "text", "text": "terse."}]
    (message,) = normalise_messages([say(role, parts)])
    assert message == say(role, "You are terse.")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"type": "image_url", "image_url": {"url": "x"}}], "part of type image_url"),
        ([{"type": "nonsense", "text": "x"}], "part of type nonsense"),
        ([{"type": "text"}], "a text part without text"),
        ([{"type": "text", "text": 7}], "a text part without text"),
        ([{"text": "x"}], "part of type None"),
        (["x"], "objects with a type"),
        ([], "at least one text part"),
        (7, "a string or a list"),
        (None, "a string or a list"),
    ],
)
def test_impossible_content_is_refused(content, message):
    with pytest.raises(InvalidRequest, match=rf"messages\[1\]\.content.*{message}") as refusal:
        normalise_messages([say("user", "Hi"), say("user", content)])
    assert refusal.value.param == "messages"


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_content_of_an_assistant_is_no_text(name):
    turns = [say("assistant", None), say("assistant", ""), {"role": "assistant"}]
    chats = [
        [CHATS["tools"][0], turn | {"tool_calls": [CALL]}, *CHATS["tools"][2:]] for turn in turns
    ]
    if name == "chatml":
        chats = [[CHATS["tools"][0], turn, say("user", "So?")] for turn in turns]
    texts = {ours(TEMPLATES[name], chat) for chat in chats}
    assert len(texts) == 1
    assert "None" not in texts.pop()


@pytest.mark.parametrize("calls", [[], None])
def test_empty_tool_calls_equal_no_field(calls):
    (message,) = normalise_messages([say("assistant", "Hi", tool_calls=calls)])
    assert message == say("assistant", "Hi")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"city": "Oslo"}', {"city": "Oslo"}),
        ({"city": "Oslo"}, {"city": "Oslo"}),
        ("", {}),
        ("{broken", "{broken"),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_of_tool_calls_become_objects(written, read):
    call = {"type": "function", "function": {"name": "f", "arguments": written}}
    (message,) = normalise_messages([say("assistant", None, tool_calls=[call])])
    assert message["tool_calls"][0]["function"]["arguments"] == read
    assert call["function"]["arguments"] == written


def test_legacy_keys_pass_through():
    given = say("assistant", "", name="bob", function_call={"name": "f", "arguments": "{}"})
    assert normalise_messages([given]) == [given]


@pytest.mark.parametrize("key", ["reasoning", "thinking", "reasoning_content"])
def test_reasoning_reaches_the_template_under_every_name(key):
    (message,) = normalise_messages([say("assistant", "A", **{key: "because"})])
    assert message["reasoning_content"] == message["thinking"] == "because"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message"),
        ("Hi", "at least one message"),
        (None, "at least one message"),
        (["Hi"], r"messages\[0\] must be an object"),
        ([{"content": "Hi"}], r"messages\[0\]\.role"),
        ([{"role": 3, "content": "Hi"}], r"messages\[0\]\.role"),
        ([say("assistant", "", tool_calls="f")], r"messages\[0\]\.tool_calls must be a list"),
        ([say("assistant", "", tool_calls=["f"])], r"messages\[0\]\.tool_calls must hold objects"),
    ],
)
def test_malformed_messages_are_refused(messages, message):
    with pytest.raises(InvalidRequest, match=message):
        normalise_messages(messages)


def test_unpaired_surrogate_is_refused():
    with pytest.raises(InvalidRequest, match="unpaired surrogate"):
        ours(CHATML, [say("user", "a\ud800")])


def test_prompting_and_continuing_exclude_each_other():
    with pytest.raises(InvalidRequest, match="exclude each other"):
        ours(CHATML, CHATS["answer"], add_generation_prompt=True, continue_final_message=True)


def test_continuing_needs_a_template_that_writes_the_message():
    with pytest.raises(InvalidRequest, match="writes the last message unchanged"):
        ours("x", CHATS["answer"], add_generation_prompt=False, continue_final_message=True)


def test_variables_cannot_replace_the_messages():
    with pytest.raises(InvalidRequest, match="messages is no variable"):
        ours(CHATML, CHATS["one"], variables={"messages": []})
