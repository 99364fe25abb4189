"""create_app: the routes, and the gate before them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from server.endpoints import ENDPOINTS, Endpoint
from server.errors import answer_http_error
from server.gate import ROUTE, Gate
from server.live import LiveView
from server.load_log import RequestLog, log_load
from server.metrics import Metrics
from server.openapi import document
from server.state import ServerSettings, ServerState
from server.tracing import open_traces

if TYPE_CHECKING:
    from paged_jax.async_engine import AsyncEngine

OPEN_PATHS = frozenset(endpoint.path for endpoint in ENDPOINTS if endpoint.is_open)
GENERATION_PATHS = frozenset(endpoint.path for endpoint in ENDPOINTS if endpoint.is_generation)


async def _describe(state: ServerState, _request: Request) -> Response:
    return JSONResponse(document(state, (*ENDPOINTS, OPENAPI)))


OPENAPI = Endpoint("/openapi.json", _describe, "This description.")


def create_app(engine: "AsyncEngine", settings: ServerSettings) -> Starlette:
    """Return the ASGI application over a started engine."""
    metrics = Metrics(engine, model=settings.served_names[0], has_alias=settings.has_metrics_alias)
    endpoint = settings.traces_endpoint
    traces = None if endpoint is None else open_traces(endpoint)
    state = ServerState(engine, settings, metrics, LiveView(engine), traces)
    engine.add_observer(metrics)
    engine.add_observer(state.live)
    if settings.logs_requests:
        engine.add_observer(RequestLog())

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
        middleware=[
            Middleware(Gate, state=state, open_paths=OPEN_PATHS, generation_paths=GENERATION_PATHS)
        ],
        exception_handlers={HTTPException: answer_http_error},
        lifespan=lifespan,
    )


def _bound(endpoint: Endpoint, state: ServerState) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        request.scope[ROUTE] = endpoint.path
        return await endpoint.handler(state, request)

    return handle
