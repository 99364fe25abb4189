"""Running a call: the deltas of all its prompts, its usage, its end when the client hangs up."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from starlette.types import Receive

from paged_jax.outputs import ChoiceDelta, CompletionOutput, RequestDelta, RequestOutput
from server.call import Call
from server.errors import SHUTTING_DOWN, ApiError
from server.state import ServerState
from server.timeline import timeline
from server.wire import Json

if TYPE_CHECKING:
    from paged_jax.async_engine import AsyncEngine

T = TypeVar("T")
Deltas = AsyncGenerator[tuple[int, RequestDelta], None]


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns, or cancel it and raise ClientGone once the client has gone.

    The body must have been read, so that all `receive` can still tell is the end of the connection.
    """
    running = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        raise ClientGone
    finally:
        running.cancel()
        watching.cancel()
        await asyncio.gather(running, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def deltas_of(state: ServerState, call: Call) -> Deltas:
    """Yield the number of a prompt and its next delta, in order of arrival.

    Closing it aborts what still runs. A consumer that is slow holds up nothing: the engine merges.

    Raises:
        ApiError: the engine failed on a request, or aborted it to shut down.
    """
    if len(call.prompts) == 1:
        async with aclosing(_one_prompt(state, call, 0)) as deltas:
            async for delta in deltas:
                yield 0, delta
        return
    queue: asyncio.Queue[tuple[int, RequestDelta | Exception | None]] = asyncio.Queue(maxsize=1)
    tasks = [
        asyncio.create_task(_pump(_one_prompt(state, call, number), queue, number))
        for number in range(len(call.prompts))
    ]
    try:
        num_left = len(tasks)
        while num_left:
            number, delta = await queue.get()
            if isinstance(delta, Exception):
                raise delta
            if delta is None:
                num_left -= 1
            else:
                yield number, delta
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    deltas: AsyncGenerator[RequestDelta, None],
    queue: asyncio.Queue[tuple[int, RequestDelta | Exception | None]],
    number: int,
) -> None:
    """Move one prompt's deltas into the common queue, then its end: None, or what went wrong."""
    async with aclosing(deltas):
        try:
            async for delta in deltas:
                await queue.put((number, delta))
        except Exception as error:
            await queue.put((number, error))
        else:
            await queue.put((number, None))


async def _one_prompt(
    state: ServerState, call: Call, number: int
) -> AsyncGenerator[RequestDelta, None]:
    engine, engine_id = state.engine, f"{call.id}-{number}-{id(call):x}"
    start_s, metrics = time.monotonic(), None
    source = closable(
        engine.generate(
            call.prompts[number].ids,
            call.params,
            request_id=engine_id,
            priority=call.priority,
            cache_salt=call.cache_salt,
        )
    )
    state.running[engine_id] = (call.id, call.client_id)
    deadline = Deadline(engine, engine_id, state.settings.request_timeout_s)
    try:
        async with aclosing(source) as deltas:
            async for delta in deltas:
                metrics = delta.metrics
                _check_delta(engine, delta, deadline)
                yield _without_output(delta) if call.answer.is_scoring else delta
    finally:
        deadline.cancel()
        del state.running[engine_id]
        if state.traces is not None:
            state.traces.note(call, number, start_s, metrics)


class Deadline:
    """Ends a request in the engine after `seconds`; 0 is never."""

    def __init__(self, engine: "AsyncEngine", engine_id: str, seconds: float):
        self.seconds, self.is_over = seconds, False
        self._abort = partial(engine.abort, engine_id)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._end) if seconds else None

    def _end(self) -> None:
        self.is_over = True
        self._abort()

    def cancel(self) -> None:
        """Let the request be."""
        if self._timer is not None:
            self._timer.cancel()


def closable(deltas: AsyncIterator[RequestDelta]) -> AsyncGenerator[RequestDelta, None]:
    """Return what AsyncEngine.generate made as what it is; closing it aborts the request."""
    assert hasattr(deltas, "aclose"), "Engine.generate must be an async generator"
    return cast(AsyncGenerator[RequestDelta, None], deltas)


def _check_delta(engine: "AsyncEngine", delta: RequestDelta, deadline: Deadline) -> None:
    """Raise ApiError if this request has no proper end to expect."""
    is_aborted = any(choice.finish_reason == "abort" for choice in delta.choices)
    if engine.is_draining and (delta.error is not None or is_aborted):
        raise ApiError(503, SHUTTING_DOWN)
    if is_aborted and deadline.is_over:
        raise ApiError(408, f"the request took longer than {deadline.seconds:g} s")
    if delta.error is not None:
        raise ApiError(500, delta.error)


def _without_output(delta: RequestDelta) -> RequestDelta:
    """Drop the token that a scoring call had to generate."""
    choices = tuple(
        ChoiceDelta(choice.index, "", (), finish_reason=choice.finish_reason and "length")
        for choice in delta.choices
    )
    return replace(delta, choices=choices)


@dataclass
class Usage:
    """The tokens of a call. The prompt counts once whatever `n` is.

    Attributes:
        think_ids: the tokens that open and close a reasoning; None if it is not counted.
        metrics: the request's times, once it has ended, if they are to be told.
        weights_version: how often the engine's parameters had been replaced.
    """

    num_prompt: int
    think_ids: tuple[int, int] | None = None
    is_inside: bool = False
    tells_metrics: bool = False
    metrics: Json | None = None
    weights_version: int = 0
    num_completion: int = 0
    num_reasoning: int = 0
    num_cached: dict[int, int] = field(default_factory=dict[int, int])
    _inside: dict[int, bool] = field(default_factory=dict[int, bool])

    @classmethod
    def of(cls, call: Call) -> "Usage":
        """Return the usage before the first token."""
        answer = call.answer
        num_prompt = sum(len(prompt.ids) for prompt in call.prompts)
        return cls(
            num_prompt,
            tells_metrics=answer.return_metrics,
            think_ids=answer.think_ids,
            is_inside=bool(answer.reading.is_inside),
        )

    def absorb(self, number: int, delta: RequestDelta) -> None:
        """Count one delta of prompt `number`."""
        for choice in delta.choices:
            self.num_completion += len(choice.token_ids)
            if self.think_ids is not None:
                self._absorb_reasoning(choice, *self.think_ids)
        self.num_cached[number] = delta.num_cached_tokens
        self.weights_version = delta.weights_version
        if self.tells_metrics and delta.metrics is not None:
            self.metrics = timeline(delta.metrics, num_cached=delta.num_cached_tokens)

    def _absorb_reasoning(self, choice: ChoiceDelta, opening: int, closing: int) -> None:
        """Count the tokens up to the closing mark, and the mark."""
        for token in choice.token_ids:
            starts = self.is_inside or token == opening
            if self._inside.setdefault(choice.index, starts):
                self.num_reasoning += 1
                self._inside[choice.index] = token != closing

    def json(self, *, num_completion: int | None = None) -> Json:
        """Return the `usage` object, of now or of an earlier `num_completion`."""
        count = self.num_completion if num_completion is None else num_completion
        usage: Json = {
            "prompt_tokens": self.num_prompt,
            "total_tokens": self.num_prompt + count,
            "completion_tokens": count,
            "prompt_tokens_details": {"cached_tokens": sum(self.num_cached.values())},
        }
        if self.think_ids is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.num_reasoning}
        return usage

    def told(self) -> Json:
        """Return the fields that end an answer: `usage`, and `metrics` if they were asked for.

        Once parameters have been replaced, `system_fingerprint` says how often.
        """
        told: Json = {"usage": self.json()}
        if self.metrics is not None:
            told["metrics"] = self.metrics
        if self.weights_version:
            told["system_fingerprint"] = f"weights-{self.weights_version}"
        return told


async def collect(state: ServerState, call: Call) -> tuple[list[RequestOutput], Usage]:
    """Run the call to its end; raises as `deltas_of`."""
    outputs = [
        RequestOutput(
            request_id=call.id,
            prompt=None,
            prompt_token_ids=list(prompt.ids),
            outputs=[CompletionOutput(index) for index in range(call.params.n)],
        )
        for prompt in call.prompts
    ]
    usage = Usage.of(call)
    async with aclosing(deltas_of(state, call)) as deltas:
        async for number, delta in deltas:
            outputs[number].absorb(delta)
            usage.absorb(number, delta)
    return outputs, usage
