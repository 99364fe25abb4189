"""Checks of single fields, shared by what users can set: each error names field and value."""

import math
from collections.abc import Mapping
from typing import TypeGuard, cast

from paged_jax.host.invalid_request import InvalidRequest


def check_number(
    name: str, value: object, kind: type, low: float, high: float, *, optional: bool
) -> None:
    """Raise InvalidRequest unless value is a finite number of `kind` in [low, high]."""
    if value is None and optional:
        return
    if not is_number(value, kind):
        wanted = "a whole number" if kind is int else "a finite number"
        raise InvalidRequest(f"{name} must be {wanted}, not {show(value)}", name)
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be between {low} and {high}, not {show(value)}", name)


def is_number(value: object, kind: type) -> TypeGuard[float]:
    """Return whether value is a whole number, or, where `kind` is float, any finite one."""
    return type(value) is int or (kind is float and type(value) is float and math.isfinite(value))


def is_text(value: object) -> bool:
    """Return whether value is a text that is not empty."""
    return isinstance(value, str) and value != ""


def unique(name: str, values: object) -> tuple[object, ...]:
    """Return the values of a list in order, each once; None is an empty list."""
    if values is None:
        return ()
    if isinstance(values, list | tuple):
        try:
            return tuple(dict.fromkeys(cast("list[object]", values)))
        except TypeError:  # a value that cannot be hashed: a list, an object
            pass
    shown = show(cast("object", values))
    raise InvalidRequest(f"{name} must be a list of plain values, not {shown}", name)


def mapping(name: str, value: object) -> dict[object, object]:
    """Return a copy of a mapping; None is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} must map keys to values, not {show(value)}", name)
    return dict(cast("Mapping[object, object]", value))


def show(value: object) -> str:
    """Return a short repr for error messages: large inputs are never echoed."""
    text = repr(value)[:200]
    return text if len(text) < 80 else text[:77] + "..."


def check_ids(name: str, ids: tuple[int, ...], most: int) -> None:
    """Raise InvalidRequest unless all are token ids, and not too many."""
    if len(ids) > most:
        raise InvalidRequest(f"{name} takes at most {most} ids, not {len(ids)}", name)
    for token in ids:
        if type(token) is not int or token < 0:
            raise InvalidRequest(f"{name} must hold token ids, not {show(token)}", name)


def check_texts(name: str, texts: tuple[object, ...], most: int, most_len: int) -> None:
    """Raise InvalidRequest unless all are texts that are not empty, and not too many or long."""
    if len(texts) > most:
        raise InvalidRequest(f"{name} takes at most {most} texts, not {len(texts)}", name)
    for text in texts:
        if not is_text(text) or len(str(text)) > most_len:
            wanted = f"texts of 1 to {most_len} characters"
            raise InvalidRequest(f"{name} must hold {wanted}, not {show(text)}", name)
