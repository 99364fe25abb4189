"""Reading a JSON body: strict UTF-8, strict types, null means absent, errors name the field."""

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn, cast

from starlette.requests import Request

from paged_jax.host.invalid_request import InvalidRequest
from server.errors import ApiError, cut
from server.wire import Json

MAX_BODY_BYTES = 32 << 20
MAX_STRING_LEN = 128
INT64 = 1 << 63
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


async def read_json(request: Request) -> Json:
    """Return the body as an object.

    Raises:
        InvalidRequest: not JSON, not an object, or text that no Unicode string can hold.
        ApiError: 413 for a body above `MAX_BODY_BYTES`; it is not read to its end.
    """
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequest(
            f"Content-Type must be application/json, not {cut(kind)}", "Content-Type"
        )
    parts: list[bytes] = []
    size = int(request.headers.get("content-length", 0))
    _check_size(size)
    size = 0
    async for part in request.stream():
        size += len(part)
        _check_size(size)
        parts.append(part)
    return parse_json(b"".join(parts))


def _check_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise ApiError(413, f"the body must not exceed {MAX_BODY_BYTES} bytes", "body")


def parse_json(raw: bytes) -> Json:
    """Return the object that `raw` spells; InvalidRequest says why it is none."""
    try:
        text = raw.decode()
        body: object = json.loads(text, parse_constant=_refuse_constant)
        if _HALF_PAIR.search(text):
            _check_text(body)
    except UnicodeDecodeError:
        raise InvalidRequest("the body must be UTF-8", "body") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply", "body") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(f"the body must be JSON: {error.msg} at {place}", "body") from None
    except ValueError as error:
        if isinstance(error, InvalidRequest):
            raise
        raise InvalidRequest("the body holds a number that is too long", "body") from None
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object", "body")
    return cast(Json, body)


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"the body must be JSON, which has no {name}", "body")


def _check_text(body: object) -> None:
    """Raise InvalidRequest that names the field whose text holds half of a surrogate pair."""
    fields = cast(Json, body) if isinstance(body, dict) else {"body": body}
    for name, value in fields.items():
        try:
            json.dumps([name, value], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"{cut(name)} holds half of a surrogate pair, which is no Unicode text", cut(name)
            ) from None


class Fields:
    """Typed access to a body's fields; null counts as absent."""

    def __init__(self, body: Json):
        self._body = body

    def get(self, name: str) -> Any:
        """Return the value as it is, or None."""
        return self._body.get(name)

    def has(self, name: str) -> bool:
        """Whether the field is given and not null."""
        return self._body.get(name) is not None

    def boolean(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        return self._typed(name, default, bool, "true or false")

    def text(self, name: str, *, max_len: int | None = None) -> str | None:
        """Return a string, or None; with `max_len`, of 1 to `max_len` characters."""
        value = self._typed(name, None, str, "a string")
        if value is not None and max_len is not None and not 1 <= len(value) <= max_len:
            raise InvalidRequest(f"{name} must have 1 to {max_len} characters", name)
        return value

    def mapping(self, name: str) -> Json | None:
        """Return an object, or None."""
        return self._typed(name, None, dict, "an object")

    def integer(self, name: str, low: int, high: int) -> int | None:
        """Return a whole number in [low, high], or None."""
        value = self._typed(name, None, int, "a whole number")
        if value is not None and not low <= value <= high:
            raise InvalidRequest(f"{name} must be between {low} and {high}, not {cut(value)}", name)
        return value

    def items(self, name: str, kind: type, wanted: str) -> list[Any] | None:
        """Return a list whose items are all of `kind`, or None."""
        values = self._typed(name, None, list, f"a list of {wanted}")
        for value in values or ():
            if type(value) is not kind:
                raise InvalidRequest(f"{name} must hold {wanted}, not {cut(value)}", name)
        return values

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of `choices`; the first is the default."""
        value = self._body.get(name)
        if value is not None and value not in choices:
            raise InvalidRequest(f"{name} must be one of {', '.join(choices)}", name)
        return value or choices[0]

    def _typed(self, name: str, default: Any, kind: Callable[[], Any], wanted: str) -> Any:
        value = self._body.get(name)
        if value is None:
            return default
        if type(value) is not kind:
            raise InvalidRequest(f"{name} must be {wanted}, not {cut(value)}", name)
        return value
