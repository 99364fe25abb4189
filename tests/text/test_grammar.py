"""Grammars over a real tokenizer: what they allow, what is refused, and that nothing waits."""

import json
import threading

import jsonschema
import numpy as np
import pytest
from schemas import random_schema
from tiny import make_tiny_folder

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.structured_outputs import StructuredOutputsParams
from paged_jax.text import grammar
from paged_jax.text.forced_calls import calls_grammar
from paged_jax.text.grammar import Grammar, GrammarCompiler
from paged_jax.text.tokenizer import Tokenizer

EOS = 2
Form = StructuredOutputsParams
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, "é"]}}, "required": ["a"]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return Tokenizer.from_folder(make_tiny_folder(tmp_path_factory.mktemp("words") / "m"))


@pytest.fixture
def compiler(tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, vocab_size=320, eos_ids=[EOS])


def walk(compiler: GrammarCompiler, form: Grammar, seed: int, limit: int = 400) -> list[int]:
    """Draw any allowed id after any, up to the end."""
    rng, state, output = np.random.default_rng(seed), form.begin(), []
    while EOS not in output and len(output) < limit:
        masks = np.zeros((1, 10), np.uint32)
        state.advance(output)
        compiler.fill([(state, 0)], masks)
        allowed = np.flatnonzero(np.unpackbits(masks.view(np.uint8), bitorder="little"))
        output.append(int(rng.choice(allowed)))
    assert not state.error
    return output


@pytest.mark.parametrize(
    "form, fits",
    [
        (Form(json=SCHEMA, disable_any_whitespace=True), lambda t: json.loads(t)["a"] in (1, "é")),
        (Form(json=json.dumps(SCHEMA)), lambda t: json.loads(t)["a"] in (1, "é")),
        (Form(json=SCHEMA, whitespace_pattern="[ ]?"), lambda t: "\n" not in t),
        (Form(json=SCHEMA, disable_additional_properties=True), lambda t: len(json.loads(t)) == 1),
        (Form(regex="[0-9]{2}-(on|off)"), lambda t: t[:2].isdigit() and t[2:] in ("-on", "-off")),
        (Form(choice=["yes", 'n"ö\n']), lambda t: t in ("yes", 'n"ö\n')),
        (Form(grammar='root ::= "a" root? "b"'), lambda t: t.count("a") * 2 == len(t)),
        (Form(grammar='start: "x" | "y" start'), lambda t: t.strip("y") == "x"),
    ],
    ids=["json", "json text", "spaces", "no more", "regex", "choice", "gbnf", "lark"],
)
def test_whatever_is_drawn_fits(compiler, tokenizer, form, fits) -> None:
    compiled, num_ended = compiler.compile(form), 0
    for seed in range(6):
        *output, last = walk(compiler, compiled, seed)
        if last == EOS:
            num_ended += 1
            assert fits(tokenizer.decode(output, skip_special_tokens=False)), output
    assert num_ended, "trigger: no walk came to an end"


@pytest.mark.parametrize("seed", range(20))
def test_any_walk_through_a_random_schema_is_a_valid_document(compiler, tokenizer, seed) -> None:
    schema = random_schema(np.random.default_rng(seed))
    compiled = compiler.compile(Form(json=schema, disable_any_whitespace=True))
    *output, last = walk(compiler, compiled, seed)
    assert last == EOS
    jsonschema.validate(json.loads(tokenizer.decode(output)), schema)


@pytest.mark.parametrize(
    "form",
    [
        Form(json={"type": "strng"}),
        Form(json={"$ref": "#/nowhere"}),
        Form(json={"$ref": "http://example.com/schema"}),
        Form(json={"type": "string", "pattern": "("}),
        Form(json={"type": "array", "uniqueItems": True}),
        Form(json={"type": "string", "pattern": "(?=a)b"}),
        Form(regex="("),
        Form(regex="(a)\\1"),
        Form(grammar="root"),
        Form(grammar="start: missing"),
        Form(grammar="(" * 5000),
    ],
    ids=lambda form: repr(form)[:60],
)
def test_what_cannot_be_compiled_is_refused_in_a_line(compiler, form) -> None:
    with pytest.raises(InvalidRequest, match=r"structured_outputs: the .* is refused") as caught:
        compiler.compile(form)
    assert caught.value.param == "structured_outputs"
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_equal_forms_are_compiled_once_and_the_oldest_forgotten(compiler, monkeypatch) -> None:
    monkeypatch.setattr(grammar, "NUM_CACHED", 2)
    forms = [Form(choice=[text]) for text in ("a", "b", "c")]
    first, second = compiler.compile(forms[0]), compiler.compile(forms[1])
    assert compiler.compile(Form(choice=("a",))) is first
    compiler.compile(forms[2])
    assert compiler.compile(forms[0]) is first
    assert compiler.compile(forms[1]) is not second


def test_a_grammar_that_takes_too_long_is_refused(compiler, monkeypatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(grammar, "COMPILE_S", 0.01)
    monkeypatch.setattr(compiler, "_compile", lambda _: release.wait(30))
    with pytest.raises(InvalidRequest, match=r"longer than 0\.01 s"):
        compiler.compile(Form(regex="a"))
    release.set()


def test_a_model_without_an_end_is_refused(tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer, vocab_size=320, eos_ids=[])
    with pytest.raises(InvalidRequest, match="end-of-sequence"):
        compiler.compile(Form(regex="a"))


def test_a_state_goes_back_when_the_output_does(compiler, tokenizer) -> None:
    state = compiler.compile(Form(choice=["ab", "cd"])).begin()
    a, b, c, d = (tokenizer.encode(letter)[0] for letter in "abcd")
    for output, follows in (([a], b), ([], None), ([c], d), ([c, d], EOS)):
        state.advance(output)
        masks = np.zeros((1, 10), np.uint32)
        compiler.fill([(state, 0)], masks)
        allowed = np.flatnonzero(np.unpackbits(masks.view(np.uint8), bitorder="little")).tolist()
        assert not state.error and (allowed == [follows] or len(output) == 0)


TOOLS = [
    {"name": "f", "parameters": {"type": "object", "properties": {"x": {"enum": [1, 2]}}}},
    {"name": "g-2"},
]
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    "style, text, fits",
    [
        ("hermes", CALL, True),
        ("hermes", f"{CALL}\n{CALL}", True),
        ("hermes", f"Well {CALL}", False),
        ("hermes", CALL.replace("1", "3"), False),
        ("hermes", CALL.replace('"f"', '"h"'), False),
        ("llama3_json", '{"name": "g-2", "parameters": {"y": []}}', True),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"x": 2}}]', True),
    ],
)
def test_forced_calls_are_written_as_the_model_is_used_to(compiler, tokenizer, style, text, fits):
    form = Form(grammar=calls_grammar(style, TOOLS, is_single=False))
    state = compiler.compile(form).begin()
    state.advance(tokenizer.encode(text))
    assert (state.matcher.is_accepting() and not state.error) is fits


@pytest.mark.parametrize(
    "is_inside, text, fits",
    [
        (True, "so <a </think>\n\n{}", True),
        (True, "{}", False),
        (False, "<think>{ </think>{}", True),
        (False, "{}", True),
        (False, "so {}", False),
    ],
)
def test_the_form_begins_behind_the_reasoning(compiler, tokenizer, is_inside, text, fits) -> None:
    for form in (
        Form(json_object=True, after_reasoning=is_inside),
        Form(grammar='start: "{}"', after_reasoning=is_inside),
    ):
        state = compiler.compile(form).begin()
        state.advance(tokenizer.encode(text))
        assert (state.matcher.is_accepting() and not state.error) is fits


def test_one_forced_call_is_not_followed_by_another(compiler, tokenizer) -> None:
    form = Form(grammar=calls_grammar("hermes", TOOLS, is_single=True))
    state = compiler.compile(form).begin()
    state.advance(tokenizer.encode(CALL))
    assert state.matcher.is_stopped() and not state.error


def test_parameters_that_are_no_object_cannot_be_forced() -> None:
    with pytest.raises(InvalidRequest, match="must be an object"):
        calls_grammar("hermes", [{"name": "f", "parameters": {"type": "string"}}], is_single=True)
