"""The fields of /v1/responses; those it shares with a chat request are the same."""

from functools import cache

from server.schema import ANY_OBJECT, array, either, integer, obj, one_of, string, unoffered
from server.structure_table import STRUCTURE
from server.tables import (
    ANSWER,
    CHOICE,
    CONVERSATION,
    FUNCTION,
    IS_FUNCTION,
    MAX_MESSAGES,
    MAX_TOOLS,
    NAME,
    REQUEST,
    SAMPLING,
    Limits,
)
from server.wire import Json

_SHARED = (
    "chat_template_kwargs",
    "include_reasoning",
    "parallel_tool_calls",
    "return_metrics",
    "stream",
)
_FORMAT = STRUCTURE["response_format"]["properties"]
_NOT_HERE = ("n", "use_beam_search", "length_penalty")
_ITEM = ANY_OBJECT | {"description": "A message, a call, its output, or a reasoning."}
_NAMED = obj({"type": IS_FUNCTION, "name": NAME}, "One function.", required=("type", "name"))
_TOOL = obj({"type": IS_FUNCTION, **FUNCTION["properties"]}, "A tool.", required=("type", "name"))
_CONTENT: Json = {
    "input": either(
        string("What the user says.", low=1),
        array(_ITEM, "The conversation.", low=1, high=MAX_MESSAGES),
        wanted="a non-empty string or a list of items",
        text="The whole conversation; nothing is stored.",
    ),
    "instructions": string("Goes before the conversation, as the system's message."),
    "reasoning": obj(
        {
            "effort": CONVERSATION["reasoning_effort"],
            "summary": unoffered("auto"),
            "generate_summary": unoffered("auto"),
        },
        "How much to think.",
    ),
    "tools": array(_TOOL, "Functions the model may call.", high=MAX_TOOLS),
    "tool_choice": either(
        one_of("none", "auto", "required", text="required forces a call."),
        _NAMED,
        wanted="none, auto, required or a named function",
        text="auto where there are tools, else none.",
    ),
    "text": obj(
        {
            "format": obj(
                {"type": _FORMAT["type"], **_FORMAT["json_schema"]["properties"]},
                "As response_format in a chat.",
                required=("type",),
            ),
            "verbosity": unoffered("medium"),
        },
        "The form of the answer.",
    ),
    "structured_outputs": STRUCTURE["structured_outputs"],
}
_REFUSED: Json = {
    "background": unoffered(False),
    "context_management": unoffered([]),
    "conversation": unoffered(),
    "include": unoffered([]),
    "max_tool_calls": unoffered(),
    "previous_response_id": unoffered(),
    "prompt": unoffered(),
    "store": unoffered(False),
    "top_logprobs": unoffered(0),
    "truncation": unoffered("disabled"),
}
_WITHOUT_EFFECT: Json = {
    "stream_options": obj({"include_obfuscation": unoffered(False)}, "Without effect."),
    "prompt_cache_key": string("Without effect: equal beginnings are always shared."),
    "safety_identifier": string("Without effect."),
    "service_tier": one_of("auto", "default", text="Without effect."),
}


@cache
def response_body(limits: Limits) -> Json:
    """Describe the body of /v1/responses."""
    known = ANSWER | CONVERSATION | CHOICE
    fields = {name: field for name, field in SAMPLING.items() if name not in _NOT_HERE}
    fields |= {name: known[name] for name in _SHARED}
    fields |= REQUEST | _REFUSED | _WITHOUT_EFFECT | _CONTENT
    fields["max_output_tokens"] = integer(1, limits.max_model_len, "The rest of the context.")
    return obj(fields, "A request for a response.", required=("input",))
