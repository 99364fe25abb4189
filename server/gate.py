"""What stands before the routes: API keys, hosts and origins, the request's id, counts, errors."""

import hmac
import re
import time
import uuid
from dataclasses import replace
from hashlib import sha256

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.call import Call
from server.errors import REQUEST_ID, ApiError, cut, error_response
from server.state import ServerState
from server.tables import MAX_NAME_LEN, PRINTABLE

OWNER = "paged_jax.owner"  # in the ASGI scope: a digest of the API key, if keys are kept apart
ROUTE = "paged_jax.route"  # in the ASGI scope: the path of the route that took the request


class Gate:
    """Refuses, or passes on and counts; answers what an endpoint raises. An ASGI application."""

    def __init__(
        self,
        app: ASGIApp,
        state: ServerState,
        *,
        open_paths: frozenset[str],
        generation_paths: frozenset[str],
    ):
        self._app, self._state = app, state
        self._open_paths, self._generation_paths = open_paths, generation_paths
        self._keys = [sha256(key.encode()).digest() for key in state.settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s, answer = time.monotonic(), _Answer(scope, send)
        scope[REQUEST_ID] = _given_id(scope) or uuid.uuid4().hex
        num = 1 if scope["path"] in self._generation_paths else 0
        self._state.num_in_flight += num
        try:
            self._check_host(scope)
            self._check_key(scope)
            await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            pass  # it left while its body was read: nobody is there to be answered
        except Exception as error:
            await error_response(error)(scope, receive, answer.send)
        finally:
            self._state.num_in_flight -= num
            route, duration_s = scope.get(ROUTE, "none"), time.monotonic() - start_s
            self._state.metrics.on_answer(route, scope["method"], answer.status, duration_s)

    def _check_host(self, scope: Scope) -> None:
        """Raise ApiError 403 for requests that a page of another site makes a browser send.

        Such a page names itself in Origin; one whose name was made to resolve to this machine
        names its own host.
        """
        host = header(scope, b"host").decode("latin-1").lower()
        allowed = self._state.settings.allowed_hosts
        if allowed and _without_port(host) not in allowed:
            raise ApiError(403, f"host {cut(host)} is not served here (--allowed-hosts)")
        origin = header(scope, b"origin").decode("latin-1").lower()
        if origin and origin.partition("://")[2] != host:
            raise ApiError(403, f"pages of {cut(origin)} may not use this server")

    def _check_key(self, scope: Scope) -> None:
        """Raise ApiError 401 unless the path is open to all or a key is given.

        Digests are compared, so that the time taken tells neither a key's length nor its start.
        """
        is_open = scope["path"] in self._open_paths or scope["method"] == "OPTIONS"
        if is_open or not self._keys:
            return
        scheme, _, key = header(scope, b"authorization").partition(b" ")
        given = sha256(key.strip()).digest()
        matches = [hmac.compare_digest(given, own) for own in self._keys]
        if scheme.lower() != b"bearer" or not any(matches):
            raise ApiError(401, "a valid API key is needed: Authorization: Bearer <key>")
        if self._state.settings.isolates_keys:
            scope[OWNER] = given.hex()


def salted(call: Call, scope: Scope) -> Call:
    """Return the call with its prefixes kept apart from those of other API keys, if they are to be.

    A digest has one length, so that no salt of one owner makes it another's.
    """
    owner = scope.get(OWNER)
    return call if owner is None else replace(call, cache_salt=owner + (call.cache_salt or ""))


def _without_port(host: str) -> str:
    return re.sub(r":[0-9]*$", "", host)


def header(scope: Scope, name: bytes) -> bytes:
    """Return the value of a header; empty if it is not given."""
    return dict(scope["headers"]).get(name, b"")


def _given_id(scope: Scope) -> str | None:
    """Return the client's id if it may be repeated as it is."""
    given = header(scope, b"x-request-id").decode("latin-1")
    is_fit = len(given) <= MAX_NAME_LEN and re.fullmatch(PRINTABLE, given) is not None
    return given if is_fit else None


class _Answer:
    """Adds the request's id to the answer and remembers its status; 499 is none at all."""

    def __init__(self, scope: Scope, send: Send):
        self._scope, self._send = scope, send
        self.status = 499

    async def send(self, message: Message) -> None:
        """Pass a message on to the client."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            name = (b"x-request-id", self._scope[REQUEST_ID].encode())
            message["headers"] = [*message.get("headers", ()), name]
        await self._send(message)
