"""What all requests share: the engine, the settings, and how many requests are in flight."""

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.text.reasoning import CLOSING, OPENING
from server.errors import SHUTTING_DOWN, ApiError, cut
from server.live import LiveView
from server.metrics import Metrics
from server.tables import Limits
from server.tracing import Traces
from server.wire import Json

if TYPE_CHECKING:
    from paged_jax.async_engine import AsyncEngine

_CERTAIN_TOKEN_LEN = 8


@dataclass(frozen=True)
class ServerSettings:
    """What the command line says about the HTTP side.

    Attributes:
        served_names: names clients may ask for; answers carry the first.
        root: where the model came from, for /v1/models.
        api_keys: if any, requests must carry one as a bearer token.
        log_interval_s: seconds between lines about the load; 0 is off.
        platform: the device's kind in those lines.
        has_metrics_alias: metrics are told under vLLM's names too.
        allowed_hosts: hosts that requests may be addressed to; any if there are none.
        isolates_keys: each API key has a prefix cache of its own.
        max_requests: generation requests, and prompts of them, that are answered or wait at once.
        request_timeout_s: seconds after which a request is ended; 0 is never.
        watchdog_s: seconds without progress after which the engine counts as stuck.
        logs_requests: a line is logged for each request that ended; never its text.
        tool_call_parser: how the model writes tool calls; None if they are not looked for.
        reasoning_parser: how the model marks its reasoning; None if it is not looked for.
        traces_endpoint: where spans are sent to; None is nowhere.
    """

    served_names: tuple[str, ...]
    root: str = ""
    version: str = "0.0.0"
    api_keys: tuple[str, ...] = ()
    log_interval_s: float = 0.0
    platform: str = "CPU"
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    has_metrics_alias: bool = False
    logs_requests: bool = False
    allowed_hosts: tuple[str, ...] = ()
    isolates_keys: bool = False
    max_requests: int = 4096
    request_timeout_s: float = 3600.0
    watchdog_s: float = 120.0
    traces_endpoint: str | None = None


@dataclass
class ServerState:
    """The one object behind every endpoint.

    Attributes:
        created: Unix time of the start, in whole seconds.
        num_in_flight: generation requests being answered.
        running: the engine's id of each prompt being answered, and the ids clients know it by.
    """

    engine: "AsyncEngine"
    settings: ServerSettings
    metrics: Metrics
    live: LiveView
    traces: Traces | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    num_in_flight: int = 0
    running: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def limits(self) -> Limits:
        """The bounds of requests that depend on the engine."""
        return Limits(self.limit, self.engine.config.max_logprobs)

    @property
    def limit(self) -> int:
        """The longest prompt plus answer, in tokens."""
        return self.engine.config.scheduler.max_model_len

    @property
    def model(self) -> str:
        """The name in every answer."""
        return self.settings.served_names[0]

    @property
    def is_ready(self) -> bool:
        """Whether new requests are taken."""
        return self.is_alive and not self.engine.is_draining

    @property
    def is_alive(self) -> bool:
        """Whether the engine works: it has not failed, and its present step is not stuck."""
        return self.engine.is_healthy and self.engine.busy_s < self.settings.watchdog_s

    @property
    def trouble(self) -> str | None:
        """Why no new requests are taken; None if they are."""
        if self.is_ready:
            return None
        if self.engine.is_healthy and not self.is_alive:
            return f"the engine has made no progress for {self.engine.busy_s:.0f} s"
        return self.engine.error or SHUTTING_DOWN

    def check_ready(self) -> None:
        """Raise ApiError 503 unless new requests are taken, 429 if there are too many."""
        if self.trouble is not None:
            self.metrics.on_refusal("not_ready")
            raise ApiError(503, self.trouble)
        self.check_room(0)

    def check_room(self, num_prompts: int) -> None:
        """Raise ApiError 429 if so many more prompts are too many; one request alone never is."""
        most, num_running = self.settings.max_requests, len(self.running)
        is_full = num_running > 0 and num_running + num_prompts > most
        if self.num_in_flight > most or is_full:
            self.metrics.on_refusal("queue_full")
            raise ApiError(429, f"{most} requests are being answered or wait: try again later")

    def check_model(self, body: Json) -> None:
        """Raise ApiError 404 if the body's `model` is a name that is not served."""
        name = body.get("model")
        if isinstance(name, str) and name not in self.settings.served_names:
            names = ", ".join(self.settings.served_names)
            raise ApiError(404, f"no model {cut(name)}; this server has: {names}", "model")

    def abort(self, request_id: str | None) -> int:
        """End the requests whose answer has this id, or all; return how many prompts ended."""
        found = [
            engine_id
            for engine_id, ids in self.running.items()
            if request_id is None or request_id in ids
        ]
        for engine_id in found:
            self.engine.abort(engine_id)
        return len(found)

    def check_text_len(self, text: str, name: str) -> None:
        """Raise InvalidRequest if `text` cannot fit the context, before it is tokenised."""
        if len(text) <= self.limit * _CERTAIN_TOKEN_LEN:
            return
        if len(text) > self.limit * self._longest_token:
            at_least = -(-len(text) // self._longest_token)
            raise InvalidRequest(
                f"the maximum context length is {self.limit} tokens but the text has "
                f"{len(text)} characters, at least {at_least} tokens: shorten it",
                name,
            )

    @cached_property
    def think_ids(self) -> tuple[int, int] | None:
        """The tokens that open and close a reasoning, if it is told apart and they are tokens."""
        encode = self.engine.tokenizer.encode
        ids = [encode(mark, add_special_tokens=False) for mark in (OPENING, CLOSING)]
        is_known = self.settings.reasoning_parser is not None and all(
            len(mark) == 1 for mark in ids
        )
        return (ids[0][0], ids[1][0]) if is_known else None

    @cached_property
    def _longest_token(self) -> int:
        tokenizer = self.engine.tokenizer
        return max(1, *(len(tokenizer.token_text(token)) for token in range(tokenizer.size)))
