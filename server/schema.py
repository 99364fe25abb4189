"""Field descriptions: JSON Schema fragments that the request parser checks bodies against.

/openapi.json publishes the same fragments, so that what is documented is what is enforced. Only
the keywords named in `check` are used. Null counts as absent wherever a field is not required.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, cast

from paged_jax.host.invalid_request import InvalidRequest
from server.errors import cut
from server.wire import Json

NOT_OFFERED = "Not offered: leave it out."
ANY_OBJECT: Json = {"type": "object"}
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "boolean": ((bool,), "true or false"),
    "integer": ((int,), "a whole number"),
    "number": ((int, float), "a finite number"),
    "string": ((str,), "a string"),
    "array": ((list,), "a list"),
    "object": ((dict,), "an object"),
}


def boolean(default: bool, text: str) -> Json:
    """Describe a switch."""
    return {"type": "boolean", "default": default, "description": text}


def integer(low: int, high: int, text: str) -> Json:
    """Describe a whole number in [low, high]."""
    return {"type": "integer", "minimum": low, "maximum": high, "description": text}


def number(low: float, high: float, text: str) -> Json:
    """Describe a finite number in [low, high]."""
    return {"type": "number", "minimum": low, "maximum": high, "description": text}


def string(text: str, *, low: int = 0, high: int | None = None) -> Json:
    """Describe a string of `low` to `high` characters."""
    limit: Json = {} if high is None else {"maxLength": high}
    return {"type": "string", "minLength": low, **limit, "description": text}


def one_of(*choices: str, text: str) -> Json:
    """Describe one of several words; the first is the default."""
    return {"enum": [*choices], "default": choices[0], "description": text}


def array(items: Json, text: str, *, low: int = 0, high: int) -> Json:
    """Describe a list of `low` to `high` items."""
    return {
        "type": "array",
        "items": items,
        "minItems": low,
        "maxItems": high,
        "description": text,
    }


def obj(properties: Json, text: str, *, required: tuple[str, ...] = ()) -> Json:
    """Describe an object; further properties are left alone."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "description": text,
    }


def either(*options: Json, wanted: str, text: str) -> Json:
    """Describe a value of one of several forms; `wanted` is what an error asks for."""
    return {"anyOf": [*options], "title": wanted, "description": text}


def unoffered(*harmless: object) -> Json:
    """Describe a known field without effect here: only values that ask for nothing are taken."""
    return {"enum": [None, *harmless], "description": NOT_OFFERED}


def check(schema: Json, value: object, name: str, *, param: str | None = None) -> None:
    """Raise InvalidRequest, naming field and value, unless `value` is as `schema` says.

    Args:
        name: where the value stands, for the message.
        param: the field to blame; `name` unless the value stands in a list.
    """
    param = param or name
    if "enum" in schema:
        _check_enum(schema, value, name, param)
    if "anyOf" in schema and not any(_fits(option, value) for option in schema["anyOf"]):
        raise InvalidRequest(f"{name} must be {schema['title']}, not {cut(value)}", param)
    if "type" in schema:
        _check_kind(schema["type"], value, name, param)
    if isinstance(value, str):
        _check_count(schema, len(value), name, param, ("minLength", "maxLength", "characters"))
        _check_pattern(schema, value, name, param)
    elif isinstance(value, int | float):
        _check_range(schema, value, name, param)
    elif isinstance(value, list):
        _check_items(schema, cast(list[object], value), name, param)
    elif isinstance(value, dict):
        _check_properties(schema, cast(Json, value), name, param)


def _fits(schema: Json, value: object) -> bool:
    try:
        check(schema, value, "value")
    except InvalidRequest:
        return False
    return True


def _check_enum(schema: Json, value: object, name: str, param: str) -> None:
    if any(type(value) is type(item) and value == item for item in schema["enum"]):
        return
    if schema["description"] == NOT_OFFERED:
        raise InvalidRequest(f"{name} is not offered (got {cut(value)}): leave it out", param)
    names = ", ".join(map(str, schema["enum"]))
    raise InvalidRequest(f"{name} must be one of {names}, not {cut(value)}", param)


def _check_kind(kind: str, value: object, name: str, param: str) -> None:
    types, wanted = _KINDS[kind]
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if type(value) not in types or not is_finite:
        raise InvalidRequest(f"{name} must be {wanted}, not {cut(value)}", param)


def _check_range(schema: Json, value: float, name: str, param: str) -> None:
    low, high = schema.get("minimum", value), schema.get("maximum", value)
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be between {low} and {high}, not {cut(value)}", param)


def _check_count(
    schema: Json, count: int, name: str, param: str, words: tuple[str, str, str]
) -> None:
    least, most, unit = words
    low, high = schema.get(least, 0), schema.get(most, count)
    if count < low and not schema.get(most):
        raise InvalidRequest(f"{name} must not be empty", param)
    if not low <= count <= high:
        raise InvalidRequest(f"{name} must have {low} to {schema[most]} {unit}, not {count}", param)


def _check_pattern(schema: Json, value: str, name: str, param: str) -> None:
    if "pattern" in schema and re.fullmatch(schema["pattern"], value) is None:
        raise InvalidRequest(f"{name} must match {schema['pattern']}, not {cut(value)}", param)


def _check_items(schema: Json, values: list[object], name: str, param: str) -> None:
    _check_count(schema, len(values), name, param, ("minItems", "maxItems", "items"))
    if "items" in schema and not _are_integers(schema["items"], values):
        for index, value in enumerate(values):
            check(schema["items"], value, f"{name}[{index}]", param=param)


def _are_integers(schema: Json, values: list[object]) -> bool:
    """Whether all are integers in range: a shortcut for prompts of many ids."""
    if schema.get("type") != "integer" or not all(type(value) is int for value in values):
        return False
    ids = cast(list[int], values)
    return not ids or (schema["minimum"] <= min(ids) and max(ids) <= schema["maximum"])


def _check_properties(schema: Json, values: Json, name: str, param: str) -> None:
    _check_count(schema, len(values), name, param, ("minProperties", "maxProperties", "entries"))
    for key in schema.get("required", ()):
        if values.get(key) is None:
            where = f"{name}.{key}" if name else key
            raise InvalidRequest(f"{where} is needed", param if param != name else where)
    known: Json = schema.get("properties", {})
    for key, inner in known.items():
        if (value := values.get(key)) is not None:
            where = f"{name}.{key}" if name else key
            check(inner, value, where, param=param if param != name else where)
    if "additionalProperties" in schema:
        for key in values.keys() - known.keys():
            check(schema["additionalProperties"], values[key], f"{name} of {cut(key)}", param=param)


class Fields:
    """A body's fields, checked against their description; absent ones have their default."""

    def __init__(self, schema: Json, body: Json):
        check(schema, body, "")
        self._body, self._known = body, cast(Mapping[str, Json], schema["properties"])

    def get(self, name: str) -> Any:
        """Return the value, its default, or None."""
        value = self._body.get(name)
        return self._known[name].get("default") if value is None else value

    def has(self, name: str) -> bool:
        """Whether the field is given and not null."""
        return self._body.get(name) is not None
