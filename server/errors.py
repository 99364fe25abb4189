"""Errors as clients see them: `{"error": {message, type, param, code}}` with an integer code.

Messages never hold a traceback, a path of this machine, or more than a line of the client's input.
"""

import logging
from typing import cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from paged_jax.host.invalid_request import InvalidRequest
from server.wire import Json

logger = logging.getLogger("paged_jax")

TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    429: "RateLimitError",
    431: "RequestTooLargeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": "1"},
    503: {"Retry-After": "5"},
}
REQUEST_ID = "paged_jax.request_id"  # in the ASGI scope; every answer repeats it
SHUTTING_DOWN = "the server is shutting down"


class ApiError(Exception):
    """An error with a status of its own; 400 is InvalidRequest."""

    def __init__(self, status: int, message: str, param: str | None = None):
        super().__init__(message)
        self.status, self.param = status, param


def cut(value: object) -> str:
    """Return a short, printable form of a client's input."""
    if isinstance(value, list | dict):
        items = cast(list[object] | Json, value)
        return f"{type(items).__name__} of {len(items)} items"
    text = ascii(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 80 else text[:77] + "..."


def error_body(status: int, message: str, param: str | None = None) -> Json:
    """Return the error object."""
    kind = TYPES.get(status, "HTTPError")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def describe(error: Exception) -> tuple[int, Json]:
    """Return the status and body an exception is answered with; log it when it is our own fault."""
    if isinstance(error, InvalidRequest):
        return 400, error_body(400, str(error), error.param or "body")
    if isinstance(error, ApiError):
        return error.status, error_body(error.status, str(error), error.param)
    if isinstance(error, RecursionError):
        return 400, error_body(400, "the body is nested too deeply", "body")
    logger.error("A request failed", exc_info=error)
    return 500, error_body(500, "internal error; the server's log has the details")


def error_response(error: Exception) -> Response:
    """Return the HTTP answer to an exception."""
    status, body = describe(error)
    return JSONResponse(body, status, HEADERS.get(status))


async def answer_http_error(request: Request, error: Exception) -> Response:
    """Answer an unknown route or a wrong method; a Starlette exception handler."""
    assert isinstance(error, HTTPException), "registered for HTTPException"
    message = f"{error.detail}: {request.method} {cut(request.url.path)}"
    return JSONResponse(
        error_body(error.status_code, message), error.status_code, headers=error.headers
    )
