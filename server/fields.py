"""Reading a JSON body: strict UTF-8, strict JSON, whole characters, a size limit."""

import asyncio
import json
import re
from typing import NoReturn, cast

from starlette.requests import Request

from paged_jax.host.invalid_request import InvalidRequest
from server.errors import ApiError, cut
from server.wire import Json

MAX_BODY_BYTES = 32 << 20
MAX_DEPTH = 128
BODY_S = 120.0
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


async def read_json(request: Request) -> Json:
    """Return the body as an object.

    Raises:
        InvalidRequest: not JSON, not an object, or text that no Unicode string can hold.
        ApiError: 413 for a body above `MAX_BODY_BYTES`; it is not read to its end. 408 for one
            that takes longer than `BODY_S`.
    """
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequest(
            f"Content-Type must be application/json, not {cut(kind)}", "Content-Type"
        )
    _check_size(int(request.headers.get("content-length", 0)))
    try:
        async with asyncio.timeout(BODY_S):
            return parse_json(await _read_all(request))
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_S:g} s", "body") from None


async def _read_all(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        _check_size(size)
        parts.append(part)
    return b"".join(parts)


def _check_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise ApiError(413, f"the body must not exceed {MAX_BODY_BYTES} bytes", "body")


def parse_json(raw: bytes) -> Json:
    """Return the object that `raw` spells; InvalidRequest says why it is none."""
    try:
        text = raw.decode()
        body: object = json.loads(text, parse_constant=_refuse_constant)
        _check_depth(text, body)
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


def _check_depth(text: str, body: object) -> None:
    """Raise InvalidRequest if `body`, spelled as `text`, is nested deeper than `MAX_DEPTH`."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    level: list[object] = [body]
    for _ in range(MAX_DEPTH):
        level = [inner for value in level for inner in _containers(value)]
    if level:
        raise InvalidRequest(f"the body must not be nested deeper than {MAX_DEPTH}", "body")


def _containers(value: object) -> list[object]:
    inner = cast(Json, value).values() if isinstance(value, dict) else cast(list[object], value)
    return [item for item in inner if isinstance(item, list | dict)]


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
