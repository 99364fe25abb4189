"""create_app: the routes, and what stands before them (API key, draining, errors)."""

import asyncio
import hmac
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from server.call import Call
from server.errors import ApiError, answer_http_error, cut, error_response
from server.fields import read_json
from server.formats import ChatFormat, CompletionFormat, Format
from server.generation import ClientGone, collect, unless_disconnected
from server.load_log import log_load
from server.metrics import Metrics
from server.protocol import parse_chat, parse_completion
from server.state import ServerSettings, ServerState
from server.streaming import EventStream, events_of
from server.tokens import detokenize, tokenize
from server.wire import Json

if TYPE_CHECKING:
    from paged_jax.async_engine import AsyncEngine

OPEN_PATHS = ("/health", "/ping", "/version", "/metrics")
GENERATION_PATHS = ("/v1/completions", "/v1/chat/completions")
Parser = Callable[[ServerState, Json, str | None], Call]


def create_app(engine: "AsyncEngine", settings: ServerSettings) -> Starlette:
    """Return the ASGI application over a started engine."""
    state = ServerState(engine, settings)
    metrics = Metrics(engine, model=state.model)
    engine.add_observer(metrics)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None, None]:
        task = asyncio.create_task(log_load(engine, settings))
        yield
        task.cancel()

    return Starlette(
        routes=[*_small_routes(state, metrics), *_json_routes(state)],
        middleware=[Middleware(Gate, state=state)],
        exception_handlers={HTTPException: answer_http_error},
        lifespan=lifespan,
    )


def _small_routes(state: ServerState, metrics: Metrics) -> list[Route]:
    async def health(_request: Request) -> Response:
        return Response(status_code=200 if state.is_ready else 503)

    async def version(_request: Request) -> Response:
        return JSONResponse({"version": state.settings.version})

    async def load(_request: Request) -> Response:
        return JSONResponse({"server_load": state.num_in_flight})

    async def scrape(_request: Request) -> Response:
        body = await asyncio.to_thread(metrics.text)
        return Response(body, media_type=metrics.content_type)

    async def models(_request: Request) -> Response:
        cards = [_model_card(state, name) for name in state.settings.served_names]
        return JSONResponse({"object": "list", "data": cards})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in state.settings.served_names:
            raise ApiError(404, f"no model {cut(name)}", "model")
        return JSONResponse(_model_card(state, name))

    return [
        Route("/health", health),
        Route("/ping", health, methods=["GET", "POST"]),
        Route("/version", version),
        Route("/load", load),
        Route("/metrics", scrape),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
    ]


def _model_card(state: ServerState, name: str) -> Json:
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "paged_jax",
        "root": state.settings.root or name,
        "parent": None,
        "max_model_len": state.limit,
    }


def _json_routes(state: ServerState) -> list[Route]:
    async def completions(request: Request) -> Response:
        return await _generate(state, request, parse_completion, CompletionFormat)

    async def chat(request: Request) -> Response:
        return await _generate(state, request, parse_chat, ChatFormat)

    async def to_tokens(request: Request) -> Response:
        body = await read_json(request)
        return JSONResponse(await asyncio.to_thread(tokenize, state, body))

    async def to_text(request: Request) -> Response:
        body = await read_json(request)
        return JSONResponse(await asyncio.to_thread(detokenize, state, body))

    endpoints = {
        "/v1/completions": completions,
        "/v1/chat/completions": chat,
        "/tokenize": to_tokens,
        "/detokenize": to_text,
    }
    return [Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()]


async def _generate(
    state: ServerState, request: Request, parse: Parser, spelling: Callable[[Call], Format]
) -> Response:
    """Answer a generation request; its texts are tokenised in a thread, for they may be long."""
    state.check_ready()
    body = await read_json(request)
    header_id = request.headers.get("x-request-id")
    call = await asyncio.to_thread(parse, state, body, header_id)
    state.check_ready()
    spelled = spelling(call)
    if call.answer.stream:
        return EventStream(events_of(state.engine, call, spelled))
    try:
        work = collect(state.engine, call)
        outputs, usage = await unless_disconnected(request.receive, work)
    except ClientGone:
        return Response(status_code=499)
    return JSONResponse(spelled.whole(outputs) | {"usage": usage.json()})


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
