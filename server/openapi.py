"""/openapi.json: the table of endpoints, told in OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.0).

It holds the very descriptions that requests are checked against.
"""

from collections.abc import Iterable, Mapping
from typing import cast

from server.endpoints import Endpoint
from server.state import ServerState
from server.tables import REQUEST
from server.wire import Json

_ERRORS = {
    400: "The request is malformed; `param` names the field.",
    401: "No valid API key is given.",
    404: "The model is not served.",
    403: "A page of another site asks, or the host is not served.",
    408: "The body, or the answer, took too long.",
    413: "The body is too large.",
    429: "Too many requests are being answered or wait; Retry-After says when to ask again.",
    503: "The server is draining, or its engine has failed.",
}
_ERROR_SCHEMA: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
        }
    },
}


def document(state: ServerState, endpoints: Iterable[Endpoint]) -> Json:
    """Return the description of the whole HTTP surface."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "paged_jax", "version": state.settings.version},
        "paths": {
            endpoint.path.replace(":path", ""): {
                method.lower(): _operation(state, endpoint, method) for method in endpoint.methods
            }
            for endpoint in endpoints
        },
        "components": {
            "schemas": {"Error": _ERROR_SCHEMA},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(state: ServerState, endpoint: Endpoint, method: str) -> Json:
    words = endpoint.path.replace("{name:path}", "name").strip("/").split("/")
    operation: Json = {
        "operationId": "_".join([method.lower(), *words]),
        "summary": endpoint.summary,
        "parameters": _parameters(endpoint),
        "responses": _responses(endpoint, state),
    }
    if not endpoint.is_open:
        operation["security"] = [{"key": []}, {}]
    if endpoint.body is not None:
        content = {"application/json": {"schema": published(endpoint.body(state.limits))}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameters(endpoint: Endpoint) -> list[Json]:
    name: Json = {"type": "string", "minLength": 1}
    header: Json = REQUEST["request_id"]
    parameters: list[Json] = []
    if "{name" in endpoint.path:
        parameters.append({"name": "name", "in": "path", "required": True, "schema": name})
    if endpoint.is_generation:
        parameters.append({"name": "X-Request-Id", "in": "header", "schema": header})
    return parameters


def _responses(endpoint: Endpoint, state: ServerState) -> Json:
    answers: Json = {}
    if endpoint.answers:
        answers = {endpoint.answers: {"schema": {"type": "object"}}}
    if endpoint.answers.startswith("text/"):
        answers = {endpoint.answers: {"schema": {"type": "string"}}}
    if endpoint.body is not None and "stream" in endpoint.body(state.limits)["properties"]:
        answers["text/event-stream"] = {}  # tools differ: a schema of the text, or of each event
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    errors = {
        str(status): {"description": text, "content": error}
        for status, text in _ERRORS.items()
        if endpoint.body is not None or status in (401, 403, 404, 503)
    }
    if not endpoint.answers:
        errors["503"] = {"description": _ERRORS[503]}
    return {"200": {"description": "The answer.", "content": answers}, **errors}


def published(schema: Json) -> Json:
    """Return a description in which every field that need not be given may be null."""
    told = dict(schema)
    needed: list[str] = schema.get("required", [])
    if "properties" in schema:
        fields = cast(Mapping[str, Json], schema["properties"])
        told["properties"] = {
            name: published(inner) if name in needed else _or_null(published(inner))
            for name, inner in fields.items()
        }
    if "items" in schema:
        told["items"] = published(schema["items"])
    return told


def _or_null(schema: Json) -> Json:
    if None in schema.get("enum", ()):
        return schema
    return {"anyOf": [schema, {"type": "null"}], "description": schema.get("description", "")}
