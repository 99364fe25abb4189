"""From tokens to text: what one request has been answered so far.

Each choice has its own incremental detokeniser and stop-string matcher. Text is held back only
while it may still become a stop string or is half a character; it is released when that fails or
the choice ends.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np

from paged_jax.device.logprobs import SampleOutput
from paged_jax.engine.prompt_pooling import PromptPooling
from paged_jax.host.request import FinishReason, Request, Sequence, TokenDelta
from paged_jax.host.trace import RequestRecord
from paged_jax.outputs import ChoiceDelta, Logprob, PositionLogprobs, RequestDelta, RequestMetrics
from paged_jax.text.detokenizer import Detokenizer
from paged_jax.text.stop_strings import StopMatcher
from paged_jax.text.tokenizer import Tokenizer


class ChoiceText:
    """The text of one choice."""

    def __init__(self, request: Request, tokenizer: Tokenizer):
        sampling = request.sampling
        skip = sampling.skip_special_tokens
        self._detokenizer = Detokenizer(tokenizer, request.prompt, skip_special_tokens=skip)
        stops, include = sampling.stop_strings, sampling.include_stop_str_in_output
        self._matcher = StopMatcher(stops, include=include) if stops else None
        self._sampling = sampling

    def absorb(self, delta: TokenDelta) -> tuple[str, str | None]:
        """Return the text one token releases, and the stop string it completed, if any."""
        sampling = self._sampling
        if not sampling.detokenize:
            return "", None
        shown = delta.finish_reason is not FinishReason.STOP or sampling.include_stop_str_in_output
        fresh = self._detokenizer.push((delta.token,)) if shown else ""
        if delta.finish_reason is not None:
            fresh += self._detokenizer.flush()
        if self._matcher is None:
            return fresh, None
        is_armed = len(delta.sequence.output) > sampling.min_tokens
        text = self._matcher.feed(fresh, is_armed=is_armed)
        if self._matcher.matched is None and delta.finish_reason is not None:
            text += self._matcher.flush()
        return text, self._matcher.matched


@dataclass
class Answer:
    """One request in progress: its texts, its times, and what it reports when it ends.

    Attributes:
        sequences: by choice, those that have a token.
    """

    request: Request
    tokenizer: Tokenizer
    choices: dict[int, ChoiceText] = field(default_factory=dict)
    sequences: dict[int, Sequence] = field(default_factory=dict)
    finish_reasons: dict[int, str] = field(default_factory=dict)
    num_generated: dict[int, int] = field(default_factory=dict)
    num_cached: int = 0
    num_preemptions: int = 0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    token_gaps_s: list[float] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    pooling: PromptPooling | None = None
    _last_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sampling, prompt = self.request.sampling, self.request.prompt
        if sampling.prompt_logprobs is not None:
            self.prompt_logprobs = [None for _ in prompt]
        if sampling.pooling is not None:
            self.pooling = PromptPooling(sampling.pooling, len(prompt))

    def choice(self, index: int) -> ChoiceText:
        """Return the text of choice `index`, made at its first token."""
        if index not in self.choices:
            self.choices[index] = ChoiceText(self.request, self.tokenizer)
        return self.choices[index]

    def fill_scores(self, first: int, count: int, outs: Iterable[SampleOutput]) -> None:
        """Note the log-probabilities of `count` prompt tokens from position `first` on."""
        assert self.prompt_logprobs is not None, "nobody asked for prompt log-probabilities"
        num_alternatives = self.request.sampling.prompt_logprobs or 0
        position, end = first, first + count
        for out in outs:
            tables = LogprobTables(out, self.tokenizer)
            for row in range(min(out.tokens.shape[0], end - position)):
                self.prompt_logprobs[position + row] = tables.position(row, num_alternatives)
            position += out.tokens.shape[0]

    @property
    def is_finished(self) -> bool:
        """Whether every choice has ended."""
        return len(self.finish_reasons) == self.request.n

    @property
    def num_fed(self) -> int:
        """Tokens that the layers were to compute, of one choice: not the last of its answer."""
        return len(self.request.prompt) + max(0, self.num_generated.get(0, 0) - 1)

    def note_token(self, sequence: Sequence, now_s: float) -> None:
        """Record the time of one token of one choice."""
        index = sequence.index
        self.sequences[index] = sequence
        if index in self._last_s:
            self.token_gaps_s.append(now_s - self._last_s[index])
        self._last_s[index] = self.last_token_s = now_s
        self.first_token_s = self.first_token_s or now_s
        self.num_generated[index] = self.num_generated.get(index, 0) + 1

    def tell(self, delta: TokenDelta, tables: "LogprobTables | None") -> ChoiceDelta:
        """Return what one token adds to its choice; a stop string it completes ends the choice."""
        sequence, wanted = delta.sequence, self.request.sampling.logprobs
        text, stopped_by = self.choice(sequence.index).absorb(delta)
        reason, stop_reason = delta.finish_reason, sequence.stop_reason
        if stopped_by is not None:
            reason, stop_reason = FinishReason.STOP, stopped_by
        finish = None if reason is None else reason.value
        if finish is not None:
            self.finish_reasons[sequence.index] = finish
        logprobs = None
        if tables is not None and wanted is not None:
            logprobs = (tables.position(delta.row, wanted),)
        return ChoiceDelta(sequence.index, text, (delta.token,), logprobs, finish, stop_reason)

    def delta(
        self, choices: Seq[ChoiceDelta], *, error: str | None = None, weights_version: int = 0
    ) -> RequestDelta:
        """Return the public delta that carries `choices`."""
        prompt_logprobs, self.prompt_logprobs = self.prompt_logprobs, None
        is_last = self.is_finished or error is not None
        return RequestDelta(
            request_id=self.request.id,
            choices=tuple(choices),
            finished=is_last,
            num_cached_tokens=self.num_cached,
            prompt_logprobs=tuple(prompt_logprobs) if prompt_logprobs is not None else None,
            metrics=self.metrics() if is_last else None,
            error=error,
            embedding=self.pooling.embedding() if self.pooling and is_last else None,
            weights_version=weights_version,
        )

    def metrics(self) -> RequestMetrics:
        """Return the request's times so far."""
        return RequestMetrics(
            arrival_time=self.request.arrival_s,
            first_scheduled_time=self.scheduled_s,
            first_token_time=self.first_token_s,
            last_token_time=self.last_token_s,
            num_generation_tokens=sum(self.num_generated.values()),
            num_preemptions=self.num_preemptions,
        )

    def record(self, now_s: float) -> RequestRecord:
        """Return the record of the ended request."""
        generated = self.num_generated.values()
        return RequestRecord(
            id=self.request.id,
            n=self.request.n,
            num_prompt_tokens=len(self.request.prompt),
            num_cached_tokens=self.num_cached,
            num_generated=sum(generated),
            max_generated=max(generated, default=0),
            max_tokens=self.request.max_tokens,
            num_preemptions=self.num_preemptions,
            finish_reasons=tuple(self.finish_reasons.values()),
            arrival_s=self.request.arrival_s,
            scheduled_s=self.scheduled_s,
            first_token_s=self.first_token_s,
            last_token_s=self.last_token_s,
            finish_s=now_s,
            token_gaps_s=tuple(self.token_gaps_s),
        )


class LogprobTables:
    """Turns a step's gathered log-probabilities into per-position tables."""

    def __init__(self, out: SampleOutput, tokenizer: Tokenizer):
        fields = (out.tokens, out.logprob, out.rank, out.top_ids, out.top_logprobs)
        self._tokens, self._logprob, self._rank, self._top_ids, self._top_logprobs = (
            np.asarray(array).tolist() for array in fields
        )
        self._tokenizer = tokenizer

    def position(self, row: int, num_alternatives: int) -> PositionLogprobs:
        """Return the chosen token of `row` first, then its likeliest alternatives."""
        chosen = self._tokens[row]
        table = {chosen: self._entry(chosen, self._logprob[row], self._rank[row])}
        tops = zip(self._top_ids[row], self._top_logprobs[row], strict=True)
        for index, (token, logprob) in enumerate(tops):
            if index == num_alternatives:
                break
            table.setdefault(token, self._entry(token, logprob, index + 1))
        return table

    def _entry(self, token: int, logprob: float, rank: int) -> Logprob:
        text, raw = self._tokenizer.token_text(token), self._tokenizer.token_bytes(token)
        return Logprob(logprob, rank, text, raw)
