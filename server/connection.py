"""The HTTP connection: uvicorn's, with bounds on what a client may send before its request is read.

The head of a request is limited in bytes and in time, and a client that takes nothing of its answer
is dropped; the ASGI side then sees it as gone.
"""

import asyncio
import json
from typing import Any

from starlette.responses import JSONResponse
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from server.errors import error_body

MAX_HEAD_BYTES = 64 << 10
HEAD_S = 20.0
STALLED_S = 60.0
_TOO_LARGE = error_body(431, f"the request's head must not exceed {MAX_HEAD_BYTES} bytes")


class GuardedProtocol(HttpToolsProtocol):
    """Ends a connection whose request head is too long or too slow, or whose client stalls."""

    def __init__(self, *args: Any, **named: Any):
        super().__init__(*args, **named)
        self._head_size: int | None = 0  # None while no head is being read
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the client a while to send the head of its first request."""
        super().connection_made(transport)
        self._start_timer("head", HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        for name in list(self._timers):
            self._stop_timer(name)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, unless the head has become too long before its end."""
        if self._head_size is not None:
            self._head_size += len(data)
        super().data_received(data)
        is_open = not self.transport.is_closing()
        if is_open and self._head_size is not None and self._head_size > MAX_HEAD_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """Begin to measure a head."""
        self._head_size = self._head_size or 0
        self._start_timer("head", HEAD_S)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Let the application answer, or refuse a head that came in one piece and is too long."""
        self._stop_timer("head")
        self._head_size = None
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        app = self.app
        if size > MAX_HEAD_BYTES:
            self.app = JSONResponse(_TOO_LARGE, 431, {"Connection": "close"})
        super().on_headers_complete()
        self.app = app

    def pause_writing(self) -> None:
        """Give the client a while to take what was sent."""
        super().pause_writing()
        self._start_timer("stalled", STALLED_S)

    def resume_writing(self) -> None:
        """Note that it did."""
        self._stop_timer("stalled")
        super().resume_writing()

    def _refuse_head(self) -> None:
        body = json.dumps(_TOO_LARGE).encode()
        head = [STATUS_LINE[431], b"content-type: application/json\r\nconnection: close\r\n"]
        head += [b"content-length: %d\r\n\r\n" % len(body)]
        self.transport.write(b"".join([*head, body]))
        self.transport.close()

    def _start_timer(self, name: str, seconds: float) -> None:
        self._stop_timer(name)
        self._timers[name] = self.loop.call_later(seconds, self.transport.abort)

    def _stop_timer(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()
