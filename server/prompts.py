"""From `prompt` or `messages` to token ids."""

from typing import Any, cast

from paged_jax.host.invalid_request import InvalidRequest
from server.call import Prompt
from server.schema import Fields
from server.state import ServerState
from server.tools import offered_tools
from server.wire import Json

MAX_CHOICES = 1024


def completion_prompts(
    state: ServerState, fields: Fields, *, n: int, echo: bool, name: str = "prompt"
) -> tuple[Prompt, ...]:
    """Return the prompts that the field `name` holds: a string, ids, or a list of either."""
    forms = _forms(fields.get(name))
    if len(forms) * n > MAX_CHOICES:
        raise InvalidRequest(
            f"{len(forms)} prompts with n={n} are too many: {MAX_CHOICES} choices at most",
            "prompt",
        )
    add_special: bool = fields.get("add_special_tokens")
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
    if isinstance(value, str) or isinstance(value[0], int):
        return [cast("str | list[int]", value)]
    return cast("list[str | list[int]]", value)


class _Cutter:
    """Applies `truncate_prompt_tokens` and `truncation_side`."""

    def __init__(self, state: ServerState, fields: Fields):
        count: int | None = fields.get("truncate_prompt_tokens")
        if count == 0:
            raise InvalidRequest("truncate_prompt_tokens must not be 0", "truncate_prompt_tokens")
        self._count = state.limit - 1 if count == -1 else count
        self._side: str = fields.get("truncation_side")

    def cut(self, ids: list[int]) -> list[int]:
        """Return the last (side left) or first (side right) ids asked for."""
        if self._count is None or self._count >= len(ids):
            return ids
        return ids[-self._count :] if self._side == "left" else ids[: self._count]


def chat_prompt(state: ServerState, fields: Fields, text: str, *, echo: bool) -> Prompt:
    """Return the prompt of a conversation from the text that the model's template made of it."""
    add_special: bool = fields.get("add_special_tokens")
    ids = state.engine.tokenizer.encode(text, add_special_tokens=add_special)
    kept = _Cutter(state, fields).cut(ids)
    return Prompt(tuple(kept), _last_answer(fields) if echo else "")


def render_messages(state: ServerState, fields: Fields) -> str:
    """Return the prompt text of the body's `messages`."""
    going_on: bool = fields.get("continue_final_message")
    opening: bool = fields.get("add_generation_prompt")
    if going_on and not fields.has("add_generation_prompt"):
        opening = False
    if going_on and opening:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt must not both be true",
            "continue_final_message",
        )
    text = state.engine.tokenizer.render_chat(
        fields.get("messages"),
        add_generation_prompt=opening,
        continue_final_message=going_on,
        tools=offered_tools(fields),
        variables=_variables(fields),
    )
    state.check_text_len(text, "messages")
    return text


def _variables(fields: Fields) -> Json:
    variables: Json = dict(fields.get("chat_template_kwargs") or {})
    effort: str | None = fields.get("reasoning_effort")
    if effort == "none":
        variables = {"enable_thinking": False, **variables}
    return variables if effort is None else {"reasoning_effort": effort, **variables}


def _last_answer(fields: Fields) -> str:
    """Return the text of the last message if it is the assistant's."""
    last: Json = fields.get("messages")[-1]
    content = last.get("content")
    if last.get("role") != "assistant" or not content:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or part.get("refusal") or "" for part in content)
