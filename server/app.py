"""create_app: the routes, and what stands before them (API key, draining, errors)."""

import asyncio
import hmac
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from server.endpoints import ENDPOINTS, Endpoint
from server.errors import ApiError, answer_http_error, error_response
from server.load_log import log_load
from server.metrics import Metrics
from server.openapi import document
from server.state import ServerSettings, ServerState

if TYPE_CHECKING:
    from paged_jax.async_engine import AsyncEngine

OPEN_PATHS = frozenset(endpoint.path for endpoint in ENDPOINTS if endpoint.is_open)
GENERATION_PATHS = frozenset(endpoint.path for endpoint in ENDPOINTS if endpoint.is_generation)


async def _describe(state: ServerState, _request: Request) -> Response:
    return JSONResponse(document(state, (*ENDPOINTS, OPENAPI)))


OPENAPI = Endpoint("/openapi.json", _describe, "This description.")


def create_app(engine: "AsyncEngine", settings: ServerSettings) -> Starlette:
    """Return the ASGI application over a started engine."""
    metrics = Metrics(engine, model=settings.served_names[0])
    state = ServerState(engine, settings, metrics)
    engine.add_observer(metrics)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None, None]:
        task = asyncio.create_task(log_load(engine, settings))
        yield
        task.cancel()

    return Starlette(
        routes=[
            Route(endpoint.path, _bound(endpoint, state), methods=[*endpoint.methods])
            for endpoint in (*ENDPOINTS, OPENAPI)
        ],
        middleware=[Middleware(Gate, state=state)],
        exception_handlers={HTTPException: answer_http_error},
        lifespan=lifespan,
    )


def _bound(endpoint: Endpoint, state: ServerState) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        return await endpoint.handler(state, request)

    return handle


class Gate:
    """Checks the API key, counts generation requests, and answers what an endpoint raises."""

    def __init__(self, app: ASGIApp, state: ServerState):
        self._app, self._state = app, state
        self._keys = [key.encode() for key in state.settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it; an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        num = 1 if scope["path"] in GENERATION_PATHS else 0
        self._state.num_in_flight += num
        try:
            self._check_key(scope)
            await self._app(scope, receive, send)
        except Exception as error:
            await error_response(error)(scope, receive, send)
        finally:
            self._state.num_in_flight -= num

    def _check_key(self, scope: Scope) -> None:
        """Raise ApiError 401 unless the path is open to all or a key is given."""
        is_open = scope["path"] in OPEN_PATHS or scope["method"] == "OPTIONS"
        if is_open or not self._keys:
            return
        header: bytes = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, key = header.partition(b" ")
        matches = [hmac.compare_digest(key.strip(), own) for own in self._keys]
        if scheme.lower() != b"bearer" or not any(matches):
            raise ApiError(401, "a valid API key is needed: Authorization: Bearer <key>")
