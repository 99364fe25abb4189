"""The fields that give an answer a form."""

from paged_jax.host.structured_outputs import MAX_CHOICES, MAX_SOURCE_LEN
from server.schema import ANY_OBJECT, array, boolean, either, obj, one_of, string, unoffered
from server.wire import Json

_SOURCE = string("Its text.", low=1, high=MAX_SOURCE_LEN)
STRUCTURE: Json = {
    "response_format": obj(
        {
            "type": one_of("text", "json_object", "json_schema", text="The form of the answer."),
            "json_schema": obj(
                {
                    "name": string("Without effect."),
                    "description": string("Without effect."),
                    "schema": {**ANY_OBJECT, "description": "A JSON Schema."},
                    "strict": boolean(True, "Without effect: it is always kept."),
                },
                "For the type json_schema.",
            ),
        },
        "JSON, if need be of a schema.",
        required=("type",),
    ),
    "structured_outputs": obj(
        {
            "json": either(
                {**ANY_OBJECT, "minProperties": 1},
                _SOURCE,
                wanted="a JSON Schema, as an object or its text",
                text="A JSON Schema.",
            ),
            "regex": _SOURCE,
            "choice": array(_SOURCE, "Texts.", low=1, high=MAX_CHOICES),
            "grammar": _SOURCE,
            "json_object": boolean(False, "Any JSON object."),
            "structural_tag": unoffered(),
            "disable_any_whitespace": boolean(False, "JSON without white space."),
            "disable_additional_properties": boolean(False, "Only properties that are named."),
            "whitespace_pattern": _SOURCE,
        },
        "Exactly one of json, regex, choice, grammar and json_object.",
    ),
}
