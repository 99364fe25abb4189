"""Reading a JSON body: strict UTF-8, strict JSON, whole characters, a size limit."""

import json
import re
from typing import NoReturn, cast

from starlette.requests import Request

from paged_jax.host.invalid_request import InvalidRequest
from server.errors import ApiError, cut
from server.wire import Json

MAX_BODY_BYTES = 32 << 20
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
