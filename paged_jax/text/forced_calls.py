"""The grammar of an answer that must consist of tool calls, as a family of models writes them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paged_jax.host.invalid_request import InvalidRequest


def calls_grammar(
    style: str, tools: Sequence[Mapping[str, Any]], *, is_single: bool, mark_id: int | None = None
) -> str:
    """Return, in Lark's notation, the grammar of calls of `tools`.

    Args:
        style: a name of TOOL_CALL_PARSERS.
        tools: functions with "name" and perhaps "parameters", a JSON Schema.
        is_single: exactly one call, not one or more.
        mark_id: the special token that opens the calls, where it is one.
    Raises:
        InvalidRequest: a function's parameters are no object.
    """
    first, before, after, between, last = _STYLES[style]
    opening = [f"<[{mark_id}]>"] if mark_id is not None else [_quoted(first)] if first else []
    more = "" if is_single else f"({_quoted(between)} call)*"
    rules = [
        " ".join(["start:", *opening, _quoted(_BRACKET[style]), "call", more, _quoted(last)]),
        "call: " + " | ".join(f"call_{index}" for index in range(len(tools))),
    ]
    for index, tool in enumerate(tools):
        head = before + f'{{"name": {json.dumps(tool["name"])}, "{_KEY[style]}": '
        rules += [
            f"call_{index}: {_quoted(head)} arguments_{index} {_quoted('}' + after)}",
            f"arguments_{index}: %json {json.dumps(_arguments(tool))}",
        ]
    return "\n".join(rules) + "\n"


# What opens all calls and each, ends each, stands between two, and ends all.
_STYLES = {
    "hermes": ("", "<tool_call>\n", "\n</tool_call>", "\n", ""),
    "llama3_json": ("", "", "", "; ", ""),
    "mistral": ("[TOOL_CALLS]", "", "", ", ", "]"),
}
_BRACKET = {"hermes": "", "llama3_json": "", "mistral": "["}
_KEY = {"hermes": "arguments", "llama3_json": "parameters", "mistral": "arguments"}


def _quoted(text: str) -> str:
    return json.dumps(text)


def _arguments(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = tool.get("parameters") or {}
    if schema.get("type", "object") != "object":
        raise InvalidRequest(
            f"tools: the parameters of {tool['name']!r} must be an object to be forced", "tools"
        )
    return {"type": "object", **schema}
