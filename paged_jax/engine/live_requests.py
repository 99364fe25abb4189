"""The requests that are being answered: what is kept of each beside its sequences, and how the
tokens drawn for it become what it is told.

One request's fault ends that request; the others go on.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Sequence as Seq

from paged_jax.config import ModelConfig
from paged_jax.device.sampling_rows import Draw, Masks
from paged_jax.engine.accounts import Accounts
from paged_jax.engine.answers import Answer, LogprobTables
from paged_jax.engine.beam_answers import BeamSearches
from paged_jax.engine.tap_book import TapBook
from paged_jax.engine.token_rules import RuleBook
from paged_jax.host.request import FinishReason, Request, TokenDelta
from paged_jax.host.scheduler import Scheduler
from paged_jax.outputs import ChoiceDelta, RequestDelta
from paged_jax.text.grammar import Grammar
from paged_jax.text.tokenizer import Tokenizer

logger = logging.getLogger("paged_jax")


class LiveRequests:
    """Answers, rules, beams and taps of the requests that have not ended.

    Attributes:
        scheduler: of their sequences.
        tokenizer: makes text of their tokens.
        answers: by id.
        rules: what they may draw.
        taps: what they read and change in the layers.
        weights_version: of the parameters that draw for them; every delta has it.
    """

    def __init__(
        self, model: ModelConfig, tokenizer: Tokenizer, scheduler: Scheduler, accounts: Accounts
    ):
        self.answers: dict[str, Answer] = {}
        self.rules = RuleBook(model, tokenizer)
        self.taps = TapBook(model)
        self.weights_version = 0
        self._beams = BeamSearches(model.vocab_limit or model.vocab_size)
        self.scheduler, self.tokenizer, self._accounts = scheduler, tokenizer, accounts
        self._failed: list[RequestDelta] = []  # not delivered yet

    def add(
        self, request: Request, grammar: Grammar | None, *, begun: tuple[int, ...] = ()
    ) -> None:
        """Keep what is to be known of a request while it lives.

        Args:
            begun: tokens of its answer that its prompt ends with.
        """
        self.answers[request.id] = Answer(request, self.tokenizer)
        self.rules.add(request, grammar, begun=begun)
        self._beams.add(request)
        self.taps.add(request)

    def abort(self, request_id: str) -> RequestDelta | None:
        """End a request in whatever state; return its last delta, None if it has ended already."""
        answer = self.answers.get(request_id)
        if answer is None:
            return None
        self.scheduler.abort(request_id)
        missing = [i for i in range(answer.request.n) if i not in answer.finish_reasons]
        reason = FinishReason.ABORT.value
        answer.finish_reasons |= dict.fromkeys(missing, reason)
        choices = [ChoiceDelta(index, "", (), finish_reason=reason) for index in missing]
        return self._deliver(answer, choices)

    def masks(self, drawn: Seq[Draw]) -> Masks:
        """Return what the rows of a step may draw; end requests whose grammar breaks down."""
        masks, broken = self.rules.masks(drawn)
        for key, reason in broken.items():
            cause = reason.splitlines()[0]  # the rest may hold the answer so far
            logger.error("Request %s: its grammar cannot be followed: %s", key, cause)
            self._failed.append(self._fail(self.answers[key], "its grammar became too complex"))
        return masks

    def take_failed(self) -> list[RequestDelta]:
        """Return the deltas of requests that `masks` has ended, once."""
        failed, self._failed = self._failed, []
        return failed

    def absorb(
        self, drawn: Seq[TokenDelta], tables: LogprobTables | None, now_s: float
    ) -> list[RequestDelta]:
        """Turn drawn tokens into the requests' deltas."""
        choices: defaultdict[str, list[ChoiceDelta]] = defaultdict(list)
        failed: list[RequestDelta] = []
        searching: set[str] = set()
        for delta in drawn:
            answer = self.answers.get(delta.sequence.request.id)
            if answer is None:
                continue  # another choice of the request failed in this step
            answer.note_token(delta.sequence, now_s)
            if self._beams.offer(delta, tables):
                searching.add(answer.request.id)
                continue
            try:
                choices[answer.request.id].append(self._choice(answer, delta, tables))
            except Exception as error:
                logger.exception("Request %s failed", answer.request.id)
                failed.append(self._fail(answer, type(error).__name__))
        for key in searching:
            choices[key] = self._beams.advance(self.answers[key], self.scheduler)
        alive = [(self.answers[key], told) for key, told in choices.items() if key in self.answers]
        return [self._deliver(answer, told) for answer, told in alive if told] + failed

    def _choice(
        self, answer: Answer, delta: TokenDelta, tables: LogprobTables | None
    ) -> ChoiceDelta:
        choice = answer.tell(delta, tables)
        if choice.finish_reason is not None and delta.finish_reason is None:  # by a stop string
            self.scheduler.finish(delta.sequence, FinishReason.STOP, choice.stop_reason)
        return choice

    def _fail(self, answer: Answer, cause: str) -> RequestDelta:
        """End one request whose answer cannot be made."""
        self.scheduler.abort(answer.request.id)
        for index in range(answer.request.n):
            answer.finish_reasons.setdefault(index, FinishReason.ERROR.value)
        return self._deliver(answer, [], error=f"the request failed: {cause}")

    def _deliver(
        self, answer: Answer, choices: list[ChoiceDelta], *, error: str | None = None
    ) -> RequestDelta:
        delta = answer.delta(choices, error=error, weights_version=self.weights_version)
        if delta.finished:
            del self.answers[answer.request.id]
            self.rules.drop(answer.request.id)
            self._beams.drop(answer.request.id)
            delta.captures = self.taps.drop(answer.request.id, answer.num_fed)
            record = answer.record(time.monotonic())
            for observer in self._accounts.observers:
                observer.on_finish(record)
        return delta
