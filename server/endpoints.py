"""The table of endpoints: routes, key and counting rules and /openapi.json all come from it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.outputs import RequestOutput
from server.call import Call
from server.chat_format import ChatFormat
from server.embeddings import embeddings_body, embeddings_list, parse_embeddings
from server.errors import REQUEST_ID, ApiError, cut
from server.fields import read_json
from server.formats import CompletionFormat, Format
from server.gate import salted
from server.generation import ClientGone, closable, collect, unless_disconnected
from server.metrics import Metrics
from server.protocol import parse_chat, parse_completion
from server.response_table import response_body
from server.responses import parse_response
from server.responses_format import ResponseFormat
from server.schema import Fields
from server.state import ServerState
from server.static_page import page
from server.streaming import EventStream, events_of
from server.tables import (
    Limits,
    abort_body,
    chat_body,
    completion_body,
    detokenize_body,
    tokenize_body,
)
from server.tokens import detokenize, tokenize
from server.tracing import PARENTS
from server.wire import Json

HEALTH_S = 30.0
Handler = Callable[[ServerState, Request], Awaitable[Response]]
Parser = Callable[[ServerState, Fields, str | None], Call]
Whole = Callable[[list[RequestOutput], Json], Json]


@dataclass(frozen=True)
class Endpoint:
    """One path.

    Attributes:
        body: describes the JSON body; None where there is none.
        answers: media type of a 200.
        is_open: no API key is needed.
        is_generation: counted as load.
    """

    path: str
    handler: Handler
    summary: str
    methods: tuple[str, ...] = ("GET",)
    body: Callable[[Limits], Json] | None = None
    answers: str = "application/json"
    is_open: bool = False
    is_generation: bool = False


async def _health(state: ServerState, _request: Request) -> Response:
    if state.trouble is not None:
        raise ApiError(503, state.trouble)
    return Response(status_code=200)


async def _livez(state: ServerState, _request: Request) -> Response:
    return Response(status_code=200 if state.is_alive else 503)


async def _health_generate(state: ServerState, _request: Request) -> Response:
    """Answer 200 once the engine has made one token, 503 if it does not."""
    state.check_ready()
    params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
    stream = state.engine.generate((0,), params, request_id=f"health-{id(params):x}", priority=-1)
    try:
        async with asyncio.timeout(HEALTH_S), aclosing(closable(stream)) as deltas:
            async for delta in deltas:
                if delta.error is not None:
                    raise ApiError(503, delta.error)
    except TimeoutError:
        raise ApiError(503, f"the engine made no token within {HEALTH_S:g} s") from None
    return Response(status_code=200)


async def _version(state: ServerState, _request: Request) -> Response:
    return JSONResponse({"version": state.settings.version})


async def _load(state: ServerState, _request: Request) -> Response:
    return JSONResponse({"server_load": state.num_in_flight})


async def _models(state: ServerState, _request: Request) -> Response:
    cards = [_model_card(state, name) for name in state.settings.served_names]
    return JSONResponse({"object": "list", "data": cards})


async def _model(state: ServerState, request: Request) -> Response:
    name = request.path_params["name"]
    if name not in state.settings.served_names:
        raise ApiError(404, f"no model {cut(name)}", "model")
    return JSONResponse(_model_card(state, name))


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


async def _reset_prefix_cache(state: ServerState, _request: Request) -> Response:
    return JSONResponse({"success": await state.engine.reset_prefix_cache()})


async def _blocks(state: ServerState, _request: Request) -> Response:
    return JSONResponse(await state.live.json())


async def _read(state: ServerState, request: Request) -> Json:
    body = await read_json(request)
    state.check_model(body)
    return body


def _json(body: Callable[[Limits], Json], answer: Callable[[ServerState, Fields], Json]) -> Handler:
    """Return a handler that answers in a thread, for texts may be long."""

    async def handle(state: ServerState, request: Request) -> Response:
        read = await _read(state, request)

        def work() -> Json:
            return answer(state, Fields(body(state.limits), read))

        return JSONResponse(await asyncio.to_thread(work))

    return handle


async def _abort(state: ServerState, request: Request) -> Response:
    fields = Fields(abort_body(state.limits), await _read(state, request))
    request_id: str | None = fields.get("request_id")
    if fields.get("abort_all") == (request_id is not None):
        raise InvalidRequest("either request_id or abort_all is needed", "request_id")
    return JSONResponse({"num_aborted": state.abort(request_id)})


async def _called(
    state: ServerState, request: Request, body: Callable[[Limits], Json], parse: Parser
) -> Call:
    """Return the call that a request asks for; texts are tokenised in a thread."""
    state.check_ready()
    read = await _read(state, request)
    header_id = request.headers.get("x-request-id")

    def work() -> Call:
        return parse(state, Fields(body(state.limits), read), header_id)

    call = salted(await asyncio.to_thread(work), request.scope)
    if state.traces is not None:
        trace = {name: request.headers[name] for name in PARENTS if name in request.headers}
        call = replace(call, trace=trace)
    request.scope[REQUEST_ID] = call.client_id
    state.check_ready()
    state.check_room(len(call.prompts))
    return call


async def _collected(state: ServerState, request: Request, call: Call, whole: Whole) -> Response:
    """Answer in one piece, unless the client leaves before."""
    try:
        outputs, usage = await unless_disconnected(request.receive, collect(state, call))
    except ClientGone:
        return Response(status_code=499)
    return JSONResponse(whole(outputs, usage.told()))


def _generation(
    body: Callable[[Limits], Json], parse: Parser, spelling: Callable[[Call], Format]
) -> Handler:
    """Return the handler of a generation endpoint."""

    async def handle(state: ServerState, request: Request) -> Response:
        call = await _called(state, request, body, parse)
        spelled = spelling(call)
        if call.answer.stream:
            return EventStream(events_of(state, call, spelled))
        return await _collected(state, request, call, spelled.whole)

    return handle


async def _embeddings(state: ServerState, request: Request) -> Response:
    call = await _called(state, request, embeddings_body, parse_embeddings)
    return await _collected(state, request, call, partial(embeddings_list, call))


async def _scrape(state: ServerState, _request: Request) -> Response:
    body = await asyncio.to_thread(state.metrics.text)
    return Response(body, media_type=Metrics.content_type)


def _post(path: str, summary: str, body: Callable[[Limits], Json], handler: Handler) -> Endpoint:
    is_generation = path.startswith("/v1/")
    return Endpoint(path, handler, summary, ("POST",), body, is_generation=is_generation)


ENDPOINTS = (
    Endpoint("/", page, "The page for people.", answers="text/html", is_open=True),
    Endpoint("/page/{name}", page, "Its files.", answers="text/css", is_open=True),
    Endpoint("/health", _health, "200 while requests are taken.", answers="", is_open=True),
    Endpoint("/ping", _health, "As /health.", ("GET", "POST"), answers="", is_open=True),
    Endpoint("/livez", _livez, "200 until the engine fails or sticks.", answers="", is_open=True),
    Endpoint("/health_generate", _health_generate, "200 once a token was made.", answers=""),
    Endpoint("/version", _version, "The server's version.", is_open=True),
    Endpoint("/metrics", _scrape, "Prometheus metrics.", answers="text/plain", is_open=True),
    Endpoint("/load", _load, "Generation requests being answered."),
    Endpoint("/v1/engine/blocks", _blocks, "The KV pool, sequences and last steps."),
    Endpoint("/v1/models", _models, "The models served."),
    Endpoint("/v1/models/{name:path}", _model, "One of them."),
    Endpoint("/reset_prefix_cache", _reset_prefix_cache, "Forget cached prefixes.", ("POST",)),
    _post("/abort_request", "End requests being answered.", abort_body, _abort),
    _post("/tokenize", "Text to token ids.", tokenize_body, _json(tokenize_body, tokenize)),
    _post("/detokenize", "Token ids to text.", detokenize_body, _json(detokenize_body, detokenize)),
    _post(
        "/v1/completions",
        "Continue prompts.",
        completion_body,
        _generation(completion_body, parse_completion, CompletionFormat),
    ),
    _post(
        "/v1/chat/completions",
        "Answer a conversation.",
        chat_body,
        _generation(chat_body, parse_chat, ChatFormat),
    ),
    _post(
        "/v1/responses",
        "Answer a conversation, as a list of items.",
        response_body,
        _generation(response_body, parse_response, ResponseFormat),
    ),
    _post("/v1/embeddings", "Texts to vectors.", embeddings_body, _embeddings),
)
