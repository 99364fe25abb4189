"""Chat messages to prompt text, as transformers' `apply_chat_template` writes it.

Messages are brought to one form first: text parts are joined with nothing between them, no text is
the empty text, and arguments of tool calls are objects. Whatever a template does wrong becomes an
InvalidRequest.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.text.template_limits import TemplateTooCostly
from paged_jax.text.template_sandbox import run_template

Message = Mapping[str, object]
Messages = Sequence[Message]
Tools = Sequence[Mapping[str, object]]

# Types of content parts that are text, and the key that holds it.
TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
# Names under which clients send a model's reasoning; templates read the first.
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
RESERVED = frozenset(("messages", "tools", "add_generation_prompt"))
CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "


def render(
    template: str,
    messages: Messages,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Tools | None = None,
    variables: Mapping[str, object] | None = None,
) -> str:
    """Return the prompt text of a chat.

    Args:
        add_generation_prompt: end with the header of the assistant's turn.
        continue_final_message: end inside the last message, so that the model continues it.
        variables: more names for the template to see, `bos_token` and the like among them.

    Raises:
        InvalidRequest: a message is malformed, or the template refuses the chat or fails.
    """
    if add_generation_prompt and continue_final_message:
        raise InvalidRequest(
            "add_generation_prompt and continue_final_message exclude each other",
            "continue_final_message",
        )
    chat = normalise_messages(messages)
    final = chat[-1]["content"]
    if continue_final_message:
        chat[-1] = {**chat[-1], "content": f"{final}{CONTINUE_MARK}"}
    names: dict[str, object] = {"documents": None, **_checked(variables or {})}
    names |= {"messages": chat, "tools": None if tools is None else list(tools)}
    text = _run(template, {**names, "add_generation_prompt": add_generation_prompt})
    return _cut(text, str(final)) if continue_final_message else text


def _checked(variables: Mapping[str, object]) -> Mapping[str, object]:
    for name in RESERVED.intersection(variables):
        raise InvalidRequest(
            f"{name} is no variable of a chat template's own", "chat_template_kwargs"
        )
    return variables


def _run(template: str, names: Mapping[str, object]) -> str:
    try:
        text = run_template(template, names)
        text.encode()
    except TemplateSyntaxError as error:
        raise InvalidRequest(
            f"the chat template is malformed: {error.message} (line {error.lineno})",
            "chat_template",
        ) from None
    except TemplateTooCostly as error:
        reason = f"the chat template costs too much: {error.message}"
        raise InvalidRequest(reason, "messages") from None
    except TemplateError as error:
        reason = f"the chat template refused the messages: {error.message}"
        raise InvalidRequest(reason, "messages") from None
    except UnicodeEncodeError:
        raise InvalidRequest(
            "the messages hold an unpaired surrogate, which is no Unicode text", "messages"
        ) from None
    except Exception as error:  # a template can fail in every way that Python can
        reason = f"the chat template failed: {type(error).__name__}: {error}"
        raise InvalidRequest(reason, "messages") from None
    return text


def _cut(text: str, final: str) -> str:
    """The text up to the end of the last message's content, which carries the mark."""
    mark = CONTINUE_MARK.strip()
    if mark not in text or final.strip() not in text:
        raise InvalidRequest(
            "continue_final_message needs a chat template that writes the last message unchanged",
            "continue_final_message",
        )
    end = text.rindex(mark)
    is_exact = text.startswith(CONTINUE_MARK, end)
    return text[:end] if is_exact else text[:end].rstrip()


def normalise_messages(messages: Messages) -> list[dict[str, Any]]:
    """Return the messages in the form that templates read; the given ones are left alone.

    Raises:
        InvalidRequest: names the message at fault, as messages[index].
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidRequest("messages must be a list of at least one message", "messages")
    return [_normalise(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _normalise(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be an object with a role", "messages")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{where}.role must be a non-empty string", "messages")
    kept = {key: value for key, value in message.items() if value is not None}
    kept["content"] = _content(message.get("content"), role, where)
    calls = kept.pop("tool_calls", [])
    if not isinstance(calls, (list, tuple)):
        raise InvalidRequest(f"{where}.tool_calls must be a list", "messages")
    if calls:
        kept["tool_calls"] = [_call(call, f"{where}.tool_calls") for call in calls]
    reasoning = next((kept[key] for key in REASONING_KEYS if key in kept), None)
    if reasoning is None:
        return kept
    return {"thinking": reasoning, **kept, "reasoning_content": reasoning}


def _content(content: object, role: str, where: str) -> str:
    if content is None and role == "assistant":
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)) or not content:
        raise InvalidRequest(
            f"{where}.content must be a string or a list of at least one text part", "messages"
        )
    return "".join(_part(part, f"{where}.content") for part in content)


def _part(part: object, where: str) -> str:
    if not isinstance(part, Mapping):
        raise InvalidRequest(f"{where} must hold objects with a type", "messages")
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        raise InvalidRequest(
            f"{where} holds a part of type {str(kind)[:40]}; this model reads text only", "messages"
        )
    text = part.get(TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise InvalidRequest(f"{where} holds a {kind} part without {TEXT_PARTS[kind]}", "messages")
    return text


def _call(call: object, where: str) -> dict[str, Any]:
    """A tool call, its arguments as an object where they are written as JSON."""
    if not isinstance(call, Mapping):
        raise InvalidRequest(f"{where} must hold objects", "messages")
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return dict(call)
    return {**call, "function": {**function, "arguments": _arguments(function["arguments"])}}


def _arguments(written: str) -> object:
    try:
        parsed = json.loads(written or "{}")
    except (ValueError, RecursionError):
        return written
    return parsed if isinstance(parsed, dict) else written
