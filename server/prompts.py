"""From `prompt` or `messages` to token ids."""

from typing import Any, cast

from paged_jax.host.invalid_request import InvalidRequest
from server.call import Prompt
from server.errors import cut
from server.fields import Fields
from server.state import ServerState
from server.wire import Json

MAX_PROMPTS = 1024
MAX_CHOICES = 1024


def completion_prompts(
    state: ServerState, fields: Fields, *, n: int, echo: bool
) -> tuple[Prompt, ...]:
    """Return the prompts of a completion: a string, ids, or a list of either."""
    forms = _forms(fields.get("prompt"))
    if len(forms) > MAX_PROMPTS or len(forms) * n > MAX_CHOICES:
        raise InvalidRequest(
            f"{len(forms)} prompts with n={n} are too many: at most {MAX_PROMPTS} prompts "
            f"and {MAX_CHOICES} choices a request",
            "prompt",
        )
    add_special = fields.boolean("add_special_tokens", True)
    cutter = _Cutter(state, fields)
    return tuple(_prompt(state, form, cutter, add_special=add_special, echo=echo) for form in forms)


def _prompt(
    state: ServerState, form: str | list[int], cutter: "_Cutter", *, add_special: bool, echo: bool
) -> Prompt:
    tokenizer = state.engine.tokenizer
    if isinstance(form, str):
        state.check_text_len(form, "prompt")
    ids = form if isinstance(form, list) else tokenizer.encode(form, add_special_tokens=add_special)
    kept = cutter.cut(ids)
    if not echo:
        return Prompt(tuple(kept))
    is_whole = isinstance(form, str) and len(kept) == len(ids)
    text = form if is_whole else _decode(state, kept)
    return Prompt(tuple(kept), cast(str, text))


def _decode(state: ServerState, ids: list[int]) -> str:
    size = state.engine.tokenizer.size
    known = [token for token in ids if 0 <= token < size]  # the engine refuses the others
    return state.engine.tokenizer.decode(known, skip_special_tokens=False)


def _forms(value: Any) -> list[str | list[int]]:
    """Return the prompts of any legal form as a list."""
    if isinstance(value, str):
        return [value]
    items = cast(list[Any], value) if isinstance(value, list) else []
    if items and all(type(item) is int for item in items):
        return [items]
    if items and all(type(item) is str for item in items):
        return items
    if items and all(_is_ids(item) for item in items):
        return items
    shown = cut(cast(object, value))
    raise InvalidRequest(
        "prompt must be a non-empty string, a list of strings, a list of token ids, "
        f"or a list of lists of token ids, not {shown}",
        "prompt",
    )


def _is_ids(item: Any) -> bool:
    return type(item) is list and all(type(token) is int for token in cast(list[Any], item))


class _Cutter:
    """Applies `truncate_prompt_tokens` and `truncation_side`."""

    def __init__(self, state: ServerState, fields: Fields):
        count = fields.integer("truncate_prompt_tokens", -1, state.limit)
        if count == 0:
            raise InvalidRequest("truncate_prompt_tokens must not be 0", "truncate_prompt_tokens")
        self._count = state.limit - 1 if count == -1 else count
        self._side = fields.one_of("truncation_side", ("left", "right"))

    def cut(self, ids: list[int]) -> list[int]:
        """Return the last (side left) or first (side right) ids asked for."""
        if self._count is None or self._count >= len(ids):
            return ids
        return ids[-self._count :] if self._side == "left" else ids[: self._count]


def chat_prompt(state: ServerState, fields: Fields, *, echo: bool) -> Prompt:
    """Return the prompt of a conversation as the model's template writes it."""
    text = render_messages(state, fields)
    add_special = fields.boolean("add_special_tokens", False)
    ids = state.engine.tokenizer.encode(text, add_special_tokens=add_special)
    kept = _Cutter(state, fields).cut(ids)
    return Prompt(tuple(kept), _last_answer(fields) if echo else "")


def render_messages(state: ServerState, fields: Fields) -> str:
    """Return the prompt text of the body's `messages`."""
    messages = fields.items("messages", dict, "objects")
    if not messages:
        raise InvalidRequest("messages must be a non-empty list of objects", "messages")
    going_on = fields.boolean("continue_final_message")
    opening = fields.boolean("add_generation_prompt", not going_on)
    if going_on and opening:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt must not both be true",
            "continue_final_message",
        )
    text = state.engine.tokenizer.render_chat(
        messages,
        add_generation_prompt=opening,
        continue_final_message=going_on,
        tools=_tools(fields),
        variables=_variables(fields),
    )
    state.check_text_len(text, "messages")
    return text


def _variables(fields: Fields) -> Json:
    variables = dict(fields.mapping("chat_template_kwargs") or {})
    effort = fields.text("reasoning_effort")
    return variables if effort is None else {"reasoning_effort": effort, **variables}


def _tools(fields: Fields) -> list[Json] | None:
    """Return the tools for the template to show; calling them is not offered."""
    tools = fields.items("tools", dict, "objects")
    choice = fields.get("tool_choice")
    fields.boolean("parallel_tool_calls")
    for tool in tools or ():
        function = tool.get("function")
        is_named = isinstance(function, dict) and isinstance(cast(Json, function).get("name"), str)
        if tool.get("type") != "function" or not is_named:
            raise InvalidRequest("a tool must have type function and function.name", "tools")
    if choice not in (None, "none") or (tools and choice is None):
        raise InvalidRequest("tool calls are not offered: only tool_choice none is", "tool_choice")
    return tools or None


def _last_answer(fields: Fields) -> str:
    """Return the text of the last message if it is the assistant's."""
    last: Json = fields.get("messages")[-1]
    content = last.get("content")
    if last.get("role") != "assistant" or not content:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or part.get("refusal") or "" for part in content)
