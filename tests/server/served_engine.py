"""A server over a FakeEngine on a loopback port, in a thread of the test process."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fake_engine import FakeEngine

from server import ServerSettings, create_app
from server.connection import GuardedProtocol

SETTINGS = ServerSettings(served_names=("fake", "alias"), version="1.2.3")


@dataclass
class Served:
    """A running server, its engine, and a client of it."""

    engine: FakeEngine
    http: httpx.Client
    server: uvicorn.Server

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def complete(self, prompt: Any, **body: Any) -> dict[str, Any]:
        return self._ok("/v1/completions", prompt=prompt, **body)

    def chat(self, messages: Any, **body: Any) -> dict[str, Any]:
        return self._ok("/v1/chat/completions", messages=messages_of(messages), **body)

    def _ok(self, path: str, **body: Any) -> dict[str, Any]:
        response = self.post(path, **body)
        assert response.status_code == 200, response.text
        return response.json()

    def stream(self, prompt: Any, *, chat: bool = False, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream, which must end in one [DONE]."""
        path = "/v1/chat/completions" if chat else "/v1/completions"
        body |= {"messages": messages_of(prompt)} if chat else {"prompt": prompt}
        response = self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        *events, done, end = response.text.split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def refused(self, path: str, status: int = 400, **body: Any) -> dict[str, Any]:
        """The error object of a request that must be refused."""
        response = self.post(path, **body)
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert error["code"] == status and error["type"] and error["message"]
        assert status != 400 or error["param"], "a 400 names the field"
        return error


def messages_of(text: Any) -> Any:
    return [{"role": "user", "content": text}] if isinstance(text, str) else text


def eventually(condition: Callable[[], bool]) -> bool:
    """Wait for a condition that must come true; generous, so that a slow machine does not fail."""
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.01)
    return False


def serve(engine: FakeEngine, settings: ServerSettings = SETTINGS) -> Iterator[Served]:
    """Yield a running server."""
    config = uvicorn.Config(
        create_app(engine, settings),
        port=0,
        log_config=None,
        access_log=False,
        ws="none",
        http=GuardedProtocol,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    assert eventually(lambda: server.started)
    host, port = server.servers[0].sockets[0].getsockname()
    with httpx.Client(base_url=f"http://{host}:{port}", timeout=30) as http:
        yield Served(engine, http, server)
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()
