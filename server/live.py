"""What the page at / shows of the engine: blocks, sequences, the last steps. No texts, no ids."""

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from paged_jax.host.block_map import BlockMap, SequenceView
from paged_jax.host.trace import RequestRecord, StepRecord
from server.errors import ApiError
from server.wire import Json

if TYPE_CHECKING:
    from paged_jax.async_engine import AsyncEngine

MAX_STEPS = 200
FRESH_S = 0.2
WAIT_S = 5.0


class LiveView:
    """An EngineObserver that keeps the last steps; asks for the blocks only when somebody looks."""

    def __init__(self, engine: "AsyncEngine"):
        self._engine = engine
        self._steps: deque[tuple[float, float, int, int]] = deque(maxlen=MAX_STEPS)
        self._told: Json = {}
        self._told_s = -FRESH_S
        self._lock = asyncio.Lock()

    def on_step(self, record: StepRecord) -> None:
        """Keep a step's times and tokens."""
        tokens = (record.num_prompt_tokens, record.num_generated)
        self._steps.append((record.start_s, record.duration_s, *tokens))

    def on_finish(self, record: RequestRecord) -> None:
        """Do nothing."""

    async def json(self) -> Json:
        """Return the present state, or one at most `FRESH_S` old.

        Raises:
            ApiError: 503 if the engine does not answer.
        """
        async with self._lock:  # however many look, the engine is asked once
            if time.monotonic() - self._told_s >= FRESH_S:
                self._told = self._described(await self._ask())
                self._told_s = time.monotonic()
            return self._told

    async def _ask(self) -> BlockMap:
        if self._engine.busy_s < WAIT_S:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S):
                    return await self._engine.block_map()
        raise ApiError(503, f"the engine gave no answer within {WAIT_S:g} s")

    def _described(self, blocks: BlockMap) -> Json:
        stats = self._engine.stats()
        return {
            "now_s": time.monotonic(),
            "num_blocks": blocks.num_blocks,
            "block_size": blocks.block_size,
            "refs": blocks.refs,
            "cached": [int(is_cached) for is_cached in blocks.cached],
            "owners": blocks.owners,
            "sequences": [*map(_described, blocks.sequences)],
            "steps": list(self._steps),
            "counts": {
                "running": stats.num_running,
                "waiting": stats.num_waiting,
                "used_blocks": stats.usage.num_used,
                "prefix_queries": stats.prefix_queries,
                "prefix_hits": stats.prefix_hits,
                "prompt_tokens": stats.computed_prompt_tokens,
                "generated_tokens": stats.generation_tokens,
                "preemptions": stats.num_preemptions,
                "copies": stats.num_copies,
                "evictions": blocks.num_evicted,
            },
        }


def _described(sequence: SequenceView) -> Json:
    return {
        "name": f"{hash(sequence.request_id) % 16**6:06x}",
        "choice": sequence.choice,
        "status": sequence.status,
        "prompt": sequence.num_prompt,
        "output": sequence.num_output,
        "computed": sequence.num_computed,
        "cached": sequence.num_cached,
        "blocks": sequence.num_blocks,
        "preemptions": sequence.num_preemptions,
    }
