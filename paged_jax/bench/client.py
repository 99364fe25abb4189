"""A streaming HTTP client for OpenAI-compatible endpoints, on the standard library alone.

One connection per request. Whatever goes wrong becomes an Outcome with an error; nothing is
repeated and nothing is hidden.
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from paged_jax.bench.metrics import Outcome
from paged_jax.config import OptionError

Json = Mapping[str, object]


class HttpError(Exception):
    """The server refused, or its answer is not what it should be."""


@dataclass(frozen=True)
class Endpoint:
    """Where a server is, and what every request to it carries."""

    host: str
    port: int
    is_tls: bool = False
    root: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str] | None = None) -> "Endpoint":
        """Read `http://host:port/root`; raises OptionError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError(f"--base-url must look like http://127.0.0.1:8000, not {url!r}")
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        return cls(parts.hostname, port, is_tls, parts.path.rstrip("/"), headers or {})


@dataclass(frozen=True)
class Ask:
    """One streaming request: where it is posted, its body, and its prompt's tokens."""

    path: str
    body: Json
    prompt_len: int


async def ask(endpoint: Endpoint, question: Ask) -> Outcome:
    """Send one request and follow its events to the end."""
    start, times, usage = time.perf_counter(), [], {}
    try:
        async for data in _events(endpoint, question):
            now = time.perf_counter()
            event = json.loads(data)
            if "error" in event:
                raise HttpError(f"error event: {json.dumps(event['error'])[:300]}")
            usage = event.get("usage") or usage
            if has_tokens(event):
                times.append(now)
        if not times:
            raise HttpError("the stream ended without a token")
    except (OSError, EOFError, ValueError, HttpError) as error:
        return Outcome(question.prompt_len, 0, start, times, f"{type(error).__name__}: {error}")
    num_output = usage.get("completion_tokens", len(times))
    return Outcome(usage.get("prompt_tokens", question.prompt_len), num_output, start, times)


def has_tokens(event: Json) -> bool:
    """Whether an event carries an answer: it has a choice, and not merely the speaker's role."""
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices:
        return False
    delta = choices[0].get("delta")
    is_role = delta is not None and "role" in delta and not delta.get("content")
    return not is_role or choices[0].get("finish_reason") is not None


async def fetch(endpoint: Endpoint, path: str, body: Json | None = None) -> str:
    """Return the answer to a GET, or to a POST where there is a body; raises HttpError."""
    reader, writer = await _open(endpoint)
    try:
        parts = [chunk async for chunk in _exchange(endpoint, path, body, (reader, writer))]
    finally:
        writer.close()
    return b"".join(parts).decode(errors="replace")


async def _events(endpoint: Endpoint, question: Ask) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event; the stream must end in [DONE]."""
    reader, writer = await _open(endpoint)
    rest = b""
    try:
        async for chunk in _exchange(endpoint, question.path, question.body, (reader, writer)):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    yield data
    finally:
        writer.close()
    raise HttpError(f"the stream ended without [DONE]{': ' if rest else ''}{rest[:300].decode()}")


async def _open(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context() if endpoint.is_tls else None
    return await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)


async def _exchange(
    endpoint: Endpoint,
    path: str,
    body: Json | None,
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> AsyncIterator[bytes]:
    """Send a request; yield the pieces of the answer's body."""
    reader, writer = connection
    writer.write(_request(endpoint, path, body))
    status = (await reader.readline()).decode().split(" ", 2)
    if len(status) < 2 or not status[1].isdigit():
        raise HttpError("the server closed the connection")
    headers = await _headers(reader)
    pieces = _pieces(reader, headers)
    if status[1] != "200":
        text = b"".join([piece async for piece in pieces]).decode(errors="replace")
        raise HttpError(f"status {status[1]}: {' '.join(text.split())[:300]}")
    async for piece in pieces:
        yield piece


def _request(endpoint: Endpoint, path: str, body: Json | None) -> bytes:
    payload = b"" if body is None else json.dumps(body).encode()
    headers = {
        "Host": f"{endpoint.host}:{endpoint.port}",
        "Content-Type": "application/json",
        "Content-Length": str(len(payload)),
        "Connection": "close",
        **endpoint.headers,
    }
    lines = [f"{'GET' if body is None else 'POST'} {endpoint.root}{path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + payload


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.decode(errors="replace").partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers


async def _pieces(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """Yield a body as it arrives: chunked, of a stated length, or up to the connection's end."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
            yield await reader.readexactly(size)
            await reader.readline()
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while piece := await reader.read(1 << 16):
            yield piece
