"""What the engine gives back, shaped as vLLM's: RequestOutput, CompletionOutput, Logprob.

The engine produces deltas (`RequestDelta`); `RequestOutput.absorb` accumulates them. Standard
library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol


@dataclass(frozen=True)
class Logprob:
    """Log-probability of one token at one position, from the raw logits (float32 log-softmax).

    Attributes:
        rank: 1 is the likeliest.
        decoded_token: the token's text; U+FFFD where it is part of a character.
        token_bytes: the token's own bytes.
    """

    logprob: float
    rank: int
    decoded_token: str = ""
    token_bytes: bytes = b""


# Per position: the chosen token first, then the likeliest in order.
PositionLogprobs = dict[int, Logprob]


@dataclass(slots=True)
class ChoiceDelta:
    """What one step adds to one choice. Never changed: not frozen only because that is slow.

    `text` may lag behind `token_ids` (held back for stop strings).
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def merged(self, later: "ChoiceDelta") -> "ChoiceDelta":
        """Return this delta and a later one of the same choice as one."""
        logprobs = None
        if self.logprobs is not None or later.logprobs is not None:
            logprobs = (self.logprobs or ()) + (later.logprobs or ())
        return replace(
            later,
            text=self.text + later.text,
            token_ids=self.token_ids + later.token_ids,
            logprobs=logprobs,
        )


class FloatArray(Protocol):
    """A float32 array of numpy's, which this module does not import."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        ...

    def __getitem__(self, index: int, /) -> "FloatArray":
        """Return the part at an index of the first axis."""
        ...

    def tolist(self) -> list[object]:
        """Return nested lists of floats."""
        ...


@dataclass(frozen=True)
class Captures:
    """What the taps of a request have read, at each position once.

    Attributes:
        positions: those that were computed, in order; the last token of an answer never is.
        residual: by layer, [positions embed].
        attention: by layer, [positions q_heads context]: what each query gave to each position.
    """

    positions: tuple[int, ...]
    residual: Mapping[int, FloatArray]
    attention: Mapping[int, FloatArray]

    def vector(self, layer: int, position: int) -> FloatArray:
        """Return the residual stream before a layer at one position, as SetVector takes it.

        Raises:
            KeyError: it was not captured.
        """
        if layer not in self.residual or position not in self.positions:
            raise KeyError(f"the stream before layer {layer} at {position} was not captured")
        return self.residual[layer][self.positions.index(position)]


@dataclass(frozen=True)
class RequestMetrics:
    """Times of a request in seconds on one monotonic clock; None where not reached."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    num_generation_tokens: int = 0
    num_preemptions: int = 0


@dataclass(slots=True)
class RequestDelta:
    """What one step adds to one request. Never changed: not frozen only because that is slow.

    Attributes:
        prompt_logprobs: given once, with the first delta, if asked for; the first position is None.
        num_cached_tokens: prompt tokens served from the prefix cache.
        finished: no further delta follows.
        metrics: given with the last delta.
        captures: likewise, if taps read anything.
        error: set when the engine failed on this request; then finished is True.
        embedding: given with the last delta, if asked for.
        weights_version: as in RequestOutput.
    """

    request_id: str
    choices: tuple[ChoiceDelta, ...]
    finished: bool
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    metrics: RequestMetrics | None = None
    captures: Captures | None = None
    error: str | None = None
    embedding: tuple[float, ...] | None = None
    weights_version: int = 0

    def merged(self, later: "RequestDelta") -> "RequestDelta":
        """Return this delta and a later one of the same request as one."""
        choices = {choice.index: choice for choice in self.choices}
        for choice in later.choices:
            earlier = choices.get(choice.index)
            choices[choice.index] = choice if earlier is None else earlier.merged(choice)
        prompt_logprobs = self.prompt_logprobs or later.prompt_logprobs
        return replace(later, choices=tuple(choices.values()), prompt_logprobs=prompt_logprobs)


@dataclass
class CompletionOutput:
    """One choice. `token_ids` include a stop or end token; `text` does not, unless asked for."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        """Whether this choice has ended."""
        return self.finish_reason is not None

    def absorb(self, delta: ChoiceDelta) -> None:
        """Append one step's delta."""
        self.text += delta.text
        self.token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            self.logprobs = (self.logprobs or []) + list(delta.logprobs)
            chosen = sum(
                table[token].logprob
                for token, table in zip(delta.token_ids, delta.logprobs, strict=True)
            )
            self.cumulative_logprob = (self.cumulative_logprob or 0.0) + chosen
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


@dataclass(frozen=True)
class BeamSearchSequence:
    """One answer of a beam search.

    Attributes:
        tokens: prompt and answer.
        text: of both.
        cum_logprob: sum of the answer's log-probabilities.
    """

    tokens: list[int]
    text: str
    cum_logprob: float
    logprobs: list[PositionLogprobs]
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True)
class BeamSearchOutput:
    """The answers to one prompt, best first."""

    sequences: list[BeamSearchSequence]


@dataclass
class RequestOutput:
    """The answer to one prompt.

    Attributes:
        weights_version: how often the engine's parameters had been replaced when it was computed.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
    embedding: tuple[float, ...] | None = None
    weights_version: int = 0
    captures: Captures | None = None

    def absorb(self, delta: RequestDelta) -> None:
        """Append one step's delta."""
        for choice in delta.choices:
            self.outputs[choice.index].absorb(choice)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = list(delta.prompt_logprobs)
        self.embedding, self.captures = delta.embedding, delta.captures
        self.finished, self.metrics = delta.finished, delta.metrics
        self.num_cached_tokens, self.weights_version = (
            delta.num_cached_tokens,
            delta.weights_version,
        )


@dataclass(frozen=True)
class EmbeddingOutput:
    """The embedding of one prompt."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many numbers it has."""
        return len(self.embedding)


@dataclass(frozen=True)
class EmbeddingRequestOutput:
    """What `LLM.embed` gives for one prompt."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
