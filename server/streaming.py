"""Server-sent events: an answer as it is made.

Every event is `data: <json>`, chunks end with `data: [DONE]`; an error after the start is an event
too.
All events of one delta are sent together.
"""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from paged_jax.outputs import RequestDelta
from server.call import Call
from server.errors import describe
from server.formats import Format
from server.generation import ClientGone, Usage, deltas_of, unless_disconnected
from server.state import ServerState
from server.wire import Json, events


class EventStream(StreamingResponse):
    """Sends events until they end or the client goes; either way the generator is closed."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]):
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request; an ASGI application."""
        async with aclosing(self._events):
            with suppress(ClientGone):
                await unless_disconnected(receive, self.stream_response(send))


async def events_of(state: ServerState, call: Call, spelled: Format) -> AsyncGenerator[bytes, None]:
    """Yield the events of the whole answer."""
    writer = _EventWriter(call, spelled)
    try:
        async with aclosing(deltas_of(state, call)) as deltas:
            async for number, delta in deltas:
                if part := writer.part(number, delta):
                    yield part
        yield writer.end() + spelled.done
    except Exception as error:
        yield events(spelled.failure(describe(error)[1])) + spelled.done


class _EventWriter:
    """Turns deltas into events and keeps the running usage."""

    def __init__(self, call: Call, spelled: Format):
        self._call, self._format = call, spelled
        self._usage = Usage.of(call)
        self._opened: set[int] = set()

    def part(self, number: int, delta: RequestDelta) -> bytes:
        """Return the events of one delta, if it tells anything."""
        num_before = self._usage.num_completion
        self._usage.absorb(number, delta)
        opening: list[Json] = []
        if number not in self._opened:
            self._opened.add(number)
            opening = self._format.opening(number, delta)
        pieces = [
            piece for choice in delta.choices for piece in self._format.pieces(number, choice)
        ]
        now = self._usage.num_completion
        return self._events(opening, num_before) + self._events(pieces, now)

    def end(self) -> bytes:
        """Return what goes after the last text."""
        return events(self._format.closing(self._usage.told()))

    def _events(self, chunks: Iterable[Json], num_completion: int) -> bytes:
        if self._call.answer.continuous_usage:
            usage = self._usage.json(num_completion=num_completion)
            chunks = [chunk | {"usage": usage} for chunk in chunks]
        return events(chunks)
