"""From `response_format`, `structured_outputs` and a forced tool call to the form of the answer."""

from typing import Any

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.structured_outputs import KINDS, StructuredOutputsParams
from paged_jax.text.answer_reader import Reading
from paged_jax.text.forced_calls import calls_grammar
from paged_jax.text.tool_calls import TOOL_CALL_PARSERS
from server.schema import Fields
from server.state import ServerState
from server.tools import DEFAULT_STYLE
from server.wire import Json

_OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


def form_of(state: ServerState, fields: Fields, reading: Reading) -> StructuredOutputsParams | None:
    """Return the form the answer must have; None if it is free.

    Raises:
        InvalidRequest: more than one field asks for a form, or one asks for none that there is.
    """
    asked = [_forced_calls(state, fields, reading), _response_format(fields), _own(fields)]
    forms = [form for form in asked if form is not None]
    if len(forms) > 1:
        raise InvalidRequest(
            "only one of response_format, structured_outputs and a forced tool_choice can be kept",
            forms[-1]["named"],
        )
    if not forms:
        return None
    return StructuredOutputsParams(**forms[0], after_reasoning=reading.is_inside)


def _own(fields: Fields) -> dict[str, Any] | None:
    given: Json | None = fields.get("structured_outputs")
    if given is None:
        return None
    known = {name: given[name] for name in (*KINDS, *_OPTIONS) if given.get(name) is not None}
    return known | {"named": "structured_outputs"}


def _response_format(fields: Fields) -> dict[str, Any] | None:
    given: Json = fields.get("response_format") or {"type": "text"}
    named = {"named": "response_format"}
    if given["type"] == "json_object":
        return named | {"json_object": True}
    if given["type"] == "text":
        return None
    schema: Json = given.get("json_schema") or {}
    if "schema" not in schema:
        raise InvalidRequest("response_format.json_schema.schema is needed", "response_format")
    return named | {"json": schema["schema"]}


def _forced_calls(state: ServerState, fields: Fields, reading: Reading) -> dict[str, Any] | None:
    if not reading.is_forced:
        return None
    style = state.settings.tool_call_parser or DEFAULT_STYLE
    tools: list[Json] = [tool["function"] for tool in fields.get("tools")]
    grammar = calls_grammar(
        style,
        [tool for tool in tools if tool["name"] in reading.names],
        is_single=reading.is_single or reading.is_named,
        mark_id=_mark_id(state, style),
    )
    return {"grammar": grammar, "named": "tools"}


def _mark_id(state: ServerState, style: str) -> int | None:
    """Return the special token that opens calls; None where it is ordinary text."""
    spelling, tokenizer = TOOL_CALL_PARSERS[style], state.engine.tokenizer
    if not (spelling.has_special_marks and spelling.needs_opening):
        return None
    ids = tokenizer.encode(spelling.opening, add_special_tokens=False)
    return ids[0] if len(ids) == 1 and ids[0] in tokenizer.special_ids else None
