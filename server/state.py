"""What all requests share: the engine, the settings, and how many requests are in flight."""

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from paged_jax.host.invalid_request import InvalidRequest
from server.errors import SHUTTING_DOWN, ApiError, cut
from server.fields import Fields

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
    """

    served_names: tuple[str, ...]
    root: str = ""
    version: str = "0.0.0"
    api_keys: tuple[str, ...] = ()
    log_interval_s: float = 0.0
    platform: str = "CPU"


@dataclass
class ServerState:
    """The one object behind every endpoint.

    Attributes:
        created: Unix time of the start, in whole seconds.
        num_in_flight: generation requests being answered.
    """

    engine: "AsyncEngine"
    settings: ServerSettings
    created: int = field(default_factory=lambda: int(time.time()))
    num_in_flight: int = 0

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
        return self.engine.is_healthy and not self.engine.is_draining

    def check_ready(self) -> None:
        """Raise ApiError 503 unless new requests are taken."""
        if not self.is_ready:
            reason = SHUTTING_DOWN if self.engine.is_draining else "the engine has failed"
            raise ApiError(503, reason)

    def check_model(self, fields: Fields) -> None:
        """Raise ApiError 404 unless the body's `model` is absent or one of the served names."""
        name = fields.text("model")
        if name is not None and name not in self.settings.served_names:
            names = ", ".join(self.settings.served_names)
            raise ApiError(404, f"no model {cut(name)}; this server has: {names}", "model")

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
    def _longest_token(self) -> int:
        tokenizer = self.engine.tokenizer
        return max(1, *(len(tokenizer.token_text(token)) for token in range(tokenizer.size)))
