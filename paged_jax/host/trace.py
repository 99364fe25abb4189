"""What happened, as records: one per step and one per ended request, for metrics and plots."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class PoolUsage:
    """How the KV pool is used at one moment. Blocks exclude the null block.

    Attributes:
        num_blocks: blocks there are.
        num_used: blocks some sequence holds (cached but unreferenced ones are free).
        num_tokens: distinct tokens held in the used blocks (a shared block counts once).
    """

    num_blocks: int
    num_used: int
    num_tokens: int


@dataclass(frozen=True)
class StepRecord:
    """One engine step. Times are monotonic seconds.

    Attributes:
        num_tokens: tokens computed.
        num_prompt_tokens: of these, of prompts (and recomputed).
        num_generated: tokens drawn.
    """

    start_s: float
    duration_s: float
    num_tokens: int
    num_prompt_tokens: int
    num_generated: int
    num_running: int
    num_waiting: int
    num_copies: int
    num_preempted: int
    usage: PoolUsage


@dataclass(frozen=True)
class RequestRecord:
    """One finished request, however it ended. Times are monotonic seconds, None where not reached.

    Attributes:
        token_gaps_s: seconds between consecutive tokens, over all choices.
    """

    id: str
    n: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated: int
    max_generated: int
    max_tokens: int
    num_preemptions: int
    finish_reasons: tuple[str, ...]
    arrival_s: float
    scheduled_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    finish_s: float
    token_gaps_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class EngineStats:
    """Gauges now, and counters since the start.

    Attributes:
        prefix_queries: prompt tokens looked up in the prefix cache at admission.
        prefix_hits: of these, tokens served from it.
        num_compilations: programs compiled since warm-up; 0 in a healthy engine.
        num_dead_replicas: replicas whose step failed; the others serve.
    """

    num_running: int = 0
    num_waiting: int = 0
    usage: PoolUsage = PoolUsage(0, 0, 0)
    prefix_queries: int = 0
    prefix_hits: int = 0
    num_preemptions: int = 0
    num_copies: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    computed_prompt_tokens: int = 0
    num_compilations: int = 0
    num_dead_replicas: int = 0


class EngineObserver(Protocol):
    """Is told what happens, in the engine's stepping thread: must be quick and must not raise."""

    def on_step(self, record: StepRecord) -> None:
        """Called after each step."""
        ...

    def on_finish(self, record: RequestRecord) -> None:
        """Called when a request has ended, also when it was aborted."""
        ...
