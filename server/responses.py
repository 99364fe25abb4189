"""/v1/responses: its request as a chat request, for the model sees the same.

Nothing is stored: a conversation is sent whole each time, and what refers to stored responses is
refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from paged_jax.host.invalid_request import InvalidRequest
from server.call import Call
from server.errors import cut
from server.protocol import parse_chat
from server.schema import Fields
from server.state import ServerState
from server.tables import chat_body
from server.wire import Json

# Fields of a chat request, and the names they have here.
_RENAMED = {
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning",
    "response_format": "text.format",
}
_TAKEN_OVER = (
    "allowed_token_ids", "bad_words", "cache_salt", "chat_template_kwargs", "frequency_penalty",
    "ignore_eos", "include_reasoning", "logit_bias", "min_p", "min_tokens", "model",
    "parallel_tool_calls", "presence_penalty", "priority", "repetition_penalty", "request_id",
    "return_metrics", "seed", "skip_special_tokens", "stop", "stop_token_ids", "stream",
    "structured_outputs", "temperature", "top_k", "top_p",
)  # fmt: skip
_TOLD = (
    "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "reasoning",
    "temperature", "tools", "top_p", "user",
)  # fmt: skip


def parse_response(state: ServerState, fields: Fields, header_id: str | None) -> Call:
    """Read the body of /v1/responses.

    Raises:
        InvalidRequest: names the field at fault, as it is called here.
    """
    body = {name: fields.get(name) for name in _TAKEN_OVER if fields.has(name)}
    tools: list[Json] = fields.get("tools") or []
    reasoning: Json = fields.get("reasoning") or {}
    body |= {
        "messages": _messages(fields),
        "max_completion_tokens": fields.get("max_output_tokens"),
        "reasoning_effort": reasoning.get("effort"),
        "response_format": _response_format(fields),
        "tools": [_nested(tool) for tool in tools] or None,
        "tool_choice": _nested_choice(fields.get("tool_choice")),
    }
    try:
        chat = Fields(chat_body(state.limits), body)
        call = parse_chat(state, chat, header_id, prefix="resp_")
    except InvalidRequest as error:
        error.param = _RENAMED.get(error.param or "", error.param)
        raise
    told: Json = {name: fields.get(name) for name in _TOLD}
    sampled = {"temperature": call.params.temperature, "top_p": call.params.top_p}
    choice = fields.get("tool_choice") or ("auto" if tools else "none")
    form: Json = {"format": {"type": "text"}} | (fields.get("text") or {})
    told |= sampled | {"tools": tools, "tool_choice": choice, "text": form}
    return replace(call, told=told)


def _response_format(fields: Fields) -> Json | None:
    """Return `text.format` as a chat request has it."""
    text: Json = fields.get("text") or {}
    form: Json | None = text.get("format")
    if form is None:
        return None
    schema = {name: value for name, value in form.items() if name != "type"}
    return {"type": form["type"], "json_schema": schema or None}


def _nested(tool: Json) -> Json:
    """Return a tool as a chat request has it."""
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": tool["type"], "function": function}


def _nested_choice(choice: str | Json | None) -> str | Json | None:
    if isinstance(choice, dict):
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _messages(fields: Fields) -> list[Json]:
    """Return instructions and input as messages."""
    given: str | list[Json] = fields.get("input")
    instructions: str | None = fields.get("instructions")
    messages: list[Json] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for index, item in enumerate(given):
        _append(messages, item, f"input[{index}]")
    for message in messages:
        message.setdefault("content", None)
    return messages


def _append(messages: list[Json], item: Json, where: str) -> None:
    """Add one item of the input; an assistant's turn may be spread over several."""
    kind = item.get("type") or "message"
    if kind == "message":
        _append_message(messages, item, where)
    elif kind == "function_call":
        turn = _assistant_turn(messages)
        function = {name: _text(item, name, where) for name in ("name", "arguments")}
        call = {"id": _text(item, "call_id", where), "type": "function", "function": function}
        turn["tool_calls"] = [*turn.get("tool_calls", ()), call]
    elif kind == "function_call_output":
        call_id, output = _text(item, "call_id", where), item.get("output")
        messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
    elif kind == "reasoning":
        parts: Any = item.get("content") or item.get("summary") or []
        texts = [_text(part, "text", f"{where}.content") for part in parts]
        messages.append({"role": "assistant", "reasoning_content": "".join(texts)})
    else:
        raise InvalidRequest(f"{where} has the type {cut(kind)}, which is not offered", "input")


def _append_message(messages: list[Json], item: Json, where: str) -> None:
    message = {"role": _text(item, "role", where), "content": item.get("content")}
    is_answer = message["role"] == "assistant"
    if is_answer and messages and messages[-1].keys() == {"role", "reasoning_content"}:
        messages[-1] |= message
    else:
        messages.append(message)


def _assistant_turn(messages: list[Json]) -> Json:
    """Return the assistant's turn that a call continues, or a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant"})
    return messages[-1]


def _text(item: object, name: str, where: str) -> str:
    value: object = cast(Json, item).get(name) if isinstance(item, Mapping) else None
    if not isinstance(value, str):
        raise InvalidRequest(f"{where}.{name} must be a string, not {cut(value)}", "input")
    return value
