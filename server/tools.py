"""`tools`, `tool_choice` and the reasoning: what the model is shown, how its answer is read."""

import json
from typing import cast

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.text.answer_reader import Reading
from paged_jax.text.reasoning import REASONING_PARSERS, opens_reasoning
from paged_jax.text.tool_calls import TOOL_CALL_PARSERS
from server.schema import Fields
from server.state import ServerSettings
from server.wire import Json

MAX_TOOLS_LEN = 1 << 18  # characters of all tools as JSON
MAX_DEPTH = 64
DEFAULT_STYLE = "hermes"  # of forced calls, where the server was not told how the model writes them


def offered_tools(fields: Fields) -> list[Json] | None:
    """Return the tools that the template shows, in the form it reads."""
    tools: list[Json] = fields.get("tools") or []
    _check_size(tools)
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise InvalidRequest("tools must have names that differ", "tools")
    return tools or None


def reading_of(settings: ServerSettings, fields: Fields, prompt: str) -> Reading:
    """Return how the answer to `prompt` is read.

    Raises:
        InvalidRequest: the choice of tools cannot be honoured.
    """
    names = _callable_names(settings, fields)
    choice: str | Json = fields.get("tool_choice") or "auto"
    is_inside: bool | None = None
    if settings.reasoning_parser is not None:
        opened = opens_reasoning(prompt)
        is_inside = REASONING_PARSERS[settings.reasoning_parser] if opened is None else opened
    return Reading(
        is_inside=is_inside,
        shows_reasoning=fields.get("include_reasoning"),
        calls=TOOL_CALL_PARSERS[settings.tool_call_parser or DEFAULT_STYLE] if names else None,
        names=names,
        is_forced=choice != "auto" and bool(names),
        is_named=isinstance(choice, dict),
        is_single=not fields.get("parallel_tool_calls"),
    )


def _callable_names(settings: ServerSettings, fields: Fields) -> tuple[str, ...]:
    """Return the functions that the answer may call."""
    tools: list[Json] = fields.get("tools") or []
    names = tuple(tool["function"]["name"] for tool in tools)
    choice: str | Json = fields.get("tool_choice") or ("auto" if tools else "none")
    if choice == "none":
        return ()
    if not tools:
        raise InvalidRequest("tool_choice needs tools", "tool_choice")
    if isinstance(choice, dict):
        _check_named(choice["function"]["name"], names)
        return (choice["function"]["name"],)
    if choice == "required":
        return names
    if settings.tool_call_parser is None:
        raise InvalidRequest(
            "tool_choice auto needs a server started with --enable-auto-tool-choice and "
            "--tool-call-parser; send tool_choice none to show the tools only",
            "tool_choice",
        )
    if any(tool["function"].get("strict") for tool in tools):
        raise InvalidRequest(
            "tools: strict is kept only where tool_choice is required or names a function", "tools"
        )
    return names


def _check_named(name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise InvalidRequest(f"tool_choice names {name!r}, which is not in tools", "tool_choice")


def _check_size(tools: list[Json]) -> None:
    """Raise InvalidRequest for tools that are too large or too deep."""
    level: list[object] = [tools]
    for _ in range(MAX_DEPTH):
        level = [inner for value in level for inner in _children(value)]
    if level:
        raise InvalidRequest(f"tools must not be nested deeper than {MAX_DEPTH}", "tools")
    size = len(json.dumps(tools)) if tools else 0
    if size > MAX_TOOLS_LEN:
        raise InvalidRequest(
            f"tools must not exceed {MAX_TOOLS_LEN} characters of JSON, not {size}", "tools"
        )


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(cast(Json, value).values())
    return cast(list[object], value) if isinstance(value, list) else []
