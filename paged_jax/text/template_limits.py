"""Measures what an expression of a chat template would make, before it is made.

The checks raise TemplateTooCostly. They cover what makes much out of little: repetition, powers,
padding, replacing, joining, and writing out structures that share their parts.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from jinja2 import filters, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.nodes import EvalContext

MAX_TEXT_LEN = 1 << 24  # characters of one value, and of the prompt
MAX_REPEAT = 1_000_000  # items or characters that one repetition, padding or number may ask for
MAX_BITS = 10_000  # of an integer
MAX_INDENT = 64  # of JSON
ITEM_COST = 16  # an item of a list counts as so many characters

# Methods of texts that no chat template needs and that make much out of little.
DROPPED_METHODS = frozenset(("expandtabs", "translate", "maketrans"))
# Widths of millions, and widths that the format string takes from elsewhere.
WIDE_FIELD = re.compile(r"\d{7}|:[^{}]*\{|%[^a-zA-Z%]*\*")


class TemplateTooCostly(SecurityError):
    """A template asked for more time or memory than a prompt may take."""


def check_size(size: int, limit: int = MAX_TEXT_LEN) -> None:
    """Raise unless `size` characters, items or bits are within the limit."""
    if size > limit:
        raise TemplateTooCostly(f"an expression makes {size:.3g} characters, items or bits")


def check_numbers(values: Iterable[object]) -> None:
    """Raise if one of the widths, counts or exponents that a call is given is enormous."""
    for value in values:
        if isinstance(value, int):
            check_size(abs(value), MAX_REPEAT)


def check_format(text: str | bytes) -> None:
    """Raise if a format string pads to an enormous width, or to one that is not written in it."""
    if WIDE_FIELD.search(text if isinstance(text, str) else text.decode("latin-1")):
        raise TemplateTooCostly("a format string has a wide or computed width")


def check_method(
    method: object, args: tuple[Any, ...], fields: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return the arguments with which a template may call `method`, if it is one of a text's."""
    owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if isinstance(owner, (str, bytes, int)):
        check_numbers([*args, *fields.values()])
    if not isinstance(owner, (str, bytes)):
        return args
    if name in DROPPED_METHODS:
        raise TemplateTooCostly(f"the method {name} is not available to templates")
    if name == "join" and args:
        parts = list(args[0])
        check_size(sum(map(len, parts)) + len(owner) * len(parts))
        return (parts, *args[1:])
    if name == "replace" and len(args) >= 2:
        check_size(len(owner) + owner.count(args[0]) * len(args[1]))
    return args


def check_operator(operator: str, left: object, right: object) -> None:
    """Raise if `left operator right` would be too large."""
    _OPERATORS[operator](left, right)


def _check_sum(left: object, right: object) -> None:
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        check_size(len(left) + len(right), MAX_REPEAT)


def _check_product(left: object, right: object) -> None:
    if isinstance(left, int) and isinstance(right, int):
        check_size(left.bit_length() + right.bit_length(), MAX_BITS)
    for items, count in ((left, right), (right, left)):
        if isinstance(items, (str, bytes, list, tuple)) and isinstance(count, int):
            check_size(len(items) * count, MAX_REPEAT)


def _check_power(left: object, right: object) -> None:
    if isinstance(left, int) and isinstance(right, int):
        check_size(left.bit_length() * right, MAX_BITS)


def _check_percent(left: object, _: object) -> None:
    if isinstance(left, (str, bytes)):
        check_format(left)


_OPERATORS: Mapping[str, Callable[[object, object], None]] = MappingProxyType(
    {"+": _check_sum, "*": _check_product, "**": _check_power, "%": _check_percent}
)


def written_len(value: object) -> int:
    """Return about how many characters `value` takes when it is written out."""
    if isinstance(value, str):
        return len(value)
    total, rest = 0, [value]
    while rest:
        item = rest.pop()
        total += len(item) if isinstance(item, str) else ITEM_COST
        if isinstance(item, Mapping):
            rest += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple, set)):
            rest += item
        check_size(total + ITEM_COST * len(rest))
    return total


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON with no HTML escapes; the filter `tojson`."""
    check_size(indent if isinstance(indent, int) else len(indent or ""), MAX_INDENT)
    check_size(len("".join(separators or ())), MAX_INDENT)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


@pass_eval_context
def join(
    context: EvalContext, value: Iterable[object], d: str = "", attribute: str | None = None
) -> str:
    """Join items; the filter `join`."""
    items = list(value)
    check_size(written_len(items) + len(items) * len(str(d)))
    if attribute is not None:
        items = list(map(filters.make_attrgetter(context.environment, attribute), items))
    return str(d).join(map(str, items))


@pass_eval_context
def replace(context: EvalContext, s: str, old: str, new: str, count: int | None = None) -> str:
    """Replace parts of a text; the filter `replace`."""
    check_size(len(str(s)) + str(s).count(str(old)) * len(str(new)))
    return filters.do_replace(context, s, old, new, count)


def indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Indent lines; the filter `indent`."""
    check_size((str(s).count("\n") + 1) * (width if isinstance(width, int) else len(width)))
    return filters.do_indent(s, width, first, blank)


def format_text(value: str, *args: object, **kwargs: object) -> str:
    """Fill in a printf-style text; the filter `format`."""
    check_format(value)
    return filters.do_format(value, *args, **kwargs)


BOUNDED_FILTERS: Mapping[str, Callable[..., object]] = MappingProxyType(
    {"tojson": to_json, "join": join, "replace": replace, "indent": indent, "format": format_text}
)
