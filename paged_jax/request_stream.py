"""The way of one request's deltas from the engine's thread to a coroutine."""

import asyncio
import threading

from paged_jax.outputs import RequestDelta


class RequestStream:
    """The deltas of one request on their way to one consumer."""

    def __init__(self, request_id: str):
        self.request_id = request_id
        self.loop = asyncio.get_running_loop()
        self.ready = asyncio.Event()
        self._lock = threading.Lock()
        self._pending: RequestDelta | None = None

    def put(self, delta: RequestDelta) -> bool:
        """Add a delta from any thread; what the consumer has not taken yet is merged with it.

        Returns whether the consumer has to be told.
        """
        with self._lock:
            merged = delta if self._pending is None else self._pending.merged(delta)
            is_first, self._pending = self._pending is None, merged
        return is_first

    async def get(self) -> RequestDelta:
        """Wait for the next delta."""
        await self.ready.wait()
        with self._lock:
            delta, self._pending = self._pending, None
            self.ready.clear()
        assert delta is not None, "woken without a delta"
        return delta
