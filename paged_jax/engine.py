"""The engine: owns the parameters, the pool, the scheduler and the programs, and runs one step at a
time.

Not thread-safe: one thread adds, steps and aborts. One request's fault ends that request; a fault
of the step itself ends the engine, since the donated pool is gone.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

import jax

from paged_jax.accounts import Accounts
from paged_jax.admission import check_beams, check_request, make_fork, make_request
from paged_jax.answers import Answer, LogprobTables
from paged_jax.beam_answers import BeamSearches
from paged_jax.compile_counter import CompileCounter
from paged_jax.config import EngineConfig
from paged_jax.device.draw_extras import LogitsProcessor
from paged_jax.device.kv_pool import init_pool
from paged_jax.device.logprobs import SampleOutput
from paged_jax.device.sampling_rows import draws
from paged_jax.device.step_batch import NOTHING_PENDING, pack
from paged_jax.engine_state import EngineCore, capture, continue_state
from paged_jax.host.forking import find_choice, first_tokens
from paged_jax.host.recording import open_scheduler
from paged_jax.host.request import (
    Chunk,
    FinishReason,
    Request,
    ScheduledStep,
    Sequence,
    TokenDelta,
)
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.host.saved import SnapshotError
from paged_jax.host.trace import EngineObserver, EngineStats
from paged_jax.launched import LaunchedStep
from paged_jax.models.params import ModelParams
from paged_jax.outputs import ChoiceDelta, RequestDelta
from paged_jax.programs import Drawn
from paged_jax.prompt_reading import read_prompts
from paged_jax.snapshot import read_snapshot, write_snapshot
from paged_jax.staged_programs import make_programs
from paged_jax.step import BackboneOutput
from paged_jax.tap_book import TapBook
from paged_jax.text.grammar import Grammar
from paged_jax.text.tokenizer import Tokenizer
from paged_jax.token_rules import RuleBook, with_breakers
from paged_jax.weight_update import check_may_update, fitted

logger = logging.getLogger("paged_jax")


class Engine:
    """Generates: `add` requests, call `step` while `has_work`, collect the deltas.

    Attributes:
        config: everything resolved.
        tokenizer: the model's.
        rules: what live requests may draw.
        default_sampling: sampling settings the model's authors recommend.
        startup: seconds of each phase of the start, in order; empty if it was not timed.
        weights_version: how often the parameters were replaced.
    """

    def __init__(
        self,
        config: EngineConfig,
        params: ModelParams,
        tokenizer: Tokenizer,
        *,
        default_sampling: dict[str, object] | None = None,
        logits_processor: LogitsProcessor | None = None,
    ):
        if logits_processor is not None:  # it may read every id
            config = replace(config, async_scheduling=False)
        self.config, self.tokenizer = config, tokenizer
        self.default_sampling = default_sampling or {}
        self.startup: Mapping[str, float] = {}
        self.params, self.weights_version = params, 0
        self.programs = make_programs(config, logits_processor)
        self.rules = RuleBook(config.model, tokenizer)
        self.pool = init_pool(config.model, config.cache, self.programs.mesh)
        self.scheduler = open_scheduler(config)
        self.programs.warm_up(params, self.pool)
        self._compiles = CompileCounter()
        self._in_flight: LaunchedStep | None = None
        self._drawn: Drawn = self.programs.nothing_drawn()
        self._last_end_s = 0.0
        self._answers: dict[str, Answer] = {}
        self._beams = BeamSearches(config.model.vocab_limit or config.model.vocab_size)
        self._taps = TapBook(config.model)
        self._failed: list[RequestDelta] = []  # not delivered yet
        self._accounts = Accounts()

    def check(self, prompt: Seq[int], params: SamplingParams) -> None:
        """Raise InvalidRequest, naming the field and the limit, if this can never be served.

        Compiles the grammar of a structured answer: not for the stepping thread.
        """
        self.check_size(prompt, params)
        self.rules.compile(params)

    def check_size(self, prompt: Seq[int], params: SamplingParams) -> None:
        """Do what `check` does, without the grammar; cheap enough for the stepping thread."""
        check_request(prompt, params, self.config)
        self.scheduler.check_fits(len(prompt), params.n)
        if params.beams is not None:
            check_beams(params, self.config)
            self.scheduler.check_beams_fit(len(prompt), params.max_tokens, params.n)

    def add(
        self,
        prompt: Seq[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        """Queue a request.

        Args:
            grammar: that of `params.structured_outputs`, if it was compiled before.
        Raises:
            InvalidRequest: it can never be served, or the id is in use.
        """
        self.check_size(prompt, params)
        grammar = grammar or self.rules.compile(params)
        request = make_request(
            prompt,
            params,
            self.config,
            request_id=request_id,
            priority=priority,
            cache_salt=cache_salt,
        )
        request = with_breakers(request, self.tokenizer)
        self.scheduler.add(request)
        self._adopt(request, grammar)

    def _adopt(
        self, request: Request, grammar: Grammar | None, *, begun: tuple[int, ...] = ()
    ) -> None:
        """Keep what is to be known of a request while it lives."""
        self._answers[request.id] = Answer(request, self.tokenizer)
        self.rules.add(request, grammar, begun=begun)
        self._beams.add(request)
        self._taps.add(request)

    def fork(
        self,
        request_id: str,
        *,
        new_id: str,
        at: int | None = None,
        params: SamplingParams | None = None,
        choice: int = 0,
    ) -> None:
        """Start a request whose prompt is the first tokens of a running one, on the same blocks.

        Args:
            at: how many of the prompt's and the answer's tokens; None is all there are so far.
            params: what follows is drawn by these; None: by the other's, with another seed.
            choice: which of the other's answers.

        Raises:
            InvalidRequest: the other is not running, it can never be served, or `new_id` is in use.
        """
        parent = find_choice(self.scheduler.live(request_id), request_id, choice)
        prompt = first_tokens(parent, at)
        request = make_fork(parent.request, prompt, params, self.config, request_id=new_id)
        self.check(prompt, request.sampling)
        begun = prompt[len(parent.request.prompt) :] if params is None else ()
        request = with_breakers(request, self.tokenizer)
        self.scheduler.fork(request, parent)
        self._adopt(request, self.rules.compile(request.sampling), begun=tuple(begun))

    def abort(self, request_id: str) -> RequestDelta | None:
        """End a request in whatever state; return its last delta, None if it has ended already."""
        answer = self._answers.get(request_id)
        if answer is None:
            return None
        self.scheduler.abort(request_id)
        missing = [i for i in range(answer.request.n) if i not in answer.finish_reasons]
        reason = FinishReason.ABORT.value
        answer.finish_reasons |= dict.fromkeys(missing, reason)
        choices = [ChoiceDelta(index, "", (), finish_reason=reason) for index in missing]
        return self._deliver(answer, choices)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work

    @property
    def num_live(self) -> int:
        """Requests that have not ended."""
        return len(self._answers)

    def snapshot(self, path: str | Path) -> None:
        """Write everything the engine is in the middle of to a new folder, and go on.

        A step that is on its way is left out: whoever continues draws the same tokens again.

        Raises:
            SnapshotError: `path` exists or cannot be written.
        """
        write_snapshot(capture(self._core(), self._answers), path)

    def restore(self, path: str | Path) -> list[RequestDelta]:
        """Continue what a snapshot of an engine with the same model was in the middle of.

        Mesh, block size and size of the pool may be others.

        Returns:
            for each request what it has been answered so far, in the order of service.

        Raises:
            SnapshotError: the snapshot is damaged, of another model or version, or needs more than
                this engine has, or this engine has requests; then nothing has changed.
        """
        if self.num_live:
            raise SnapshotError(
                f"the engine has {self.num_live} requests: restore into one that has none"
            )
        self.pool, self._answers, told = continue_state(read_snapshot(path), self._core())
        return told

    def _core(self) -> EngineCore:
        return EngineCore(
            self.config, self.params, self.pool, self.scheduler, self.tokenizer, self.rules
        )

    def step(self) -> list[RequestDelta]:
        """Launch the next step on the device, then deliver what the one before it drew.

        Without overlap, or where the next step needs what this one draws, it is delivered at once.
        """
        before, self._in_flight = self._in_flight, None
        launched = self._launch(before)
        deltas = (self._read(before) if before else []) + self._failed
        self._failed = []
        if launched and (launched.needs_reading or not self.config.async_scheduling):
            return deltas + self._read(launched)
        if self.scheduler.has_work:  # otherwise nobody wants what it draws
            self._in_flight = launched
        return deltas

    def _launch(self, before: LaunchedStep | None) -> LaunchedStep | None:
        """Start the step after `before`; None if there is nothing to compute."""
        ahead_of, pending = (before.work, before.rows()) if before else (None, {})
        return self._start(lambda: self.scheduler.schedule(ahead_of=ahead_of), pending)

    def _start(
        self,
        schedule: Callable[[], ScheduledStep],
        pending: Mapping[Sequence, int] = NOTHING_PENDING,
    ) -> LaunchedStep | None:
        """Schedule a step and start its programs; None if there is nothing to compute.

        Args:
            pending: the rows of the step before that drew tokens this one goes on from.
        """
        start_s = time.monotonic()
        work = schedule()
        self._accounts.note_scheduled(work, start_s, self._answers)
        if not work.chunks:
            return None
        programs = self.programs
        with self._compiles.watch():
            if work.copies:
                self.pool = programs.run_copies(self.pool, work.copies)
            shape = programs.batch_shape(work.num_tokens)
            batch = pack(work.chunks, shape, self.config.cache.block_size, pending=pending)
            batch, reads = self._taps.pack(work.chunks, batch)
            hidden, self.pool = programs.run_backbone(self.params, self.pool, batch, self._drawn)
            read_prompts(programs, self.params, work.chunks, hidden, self._answers)
            reads = reads and replace(reads, out=hidden.taps)
            launched = LaunchedStep(work, start_s, self._draw(work.chunks, hidden), reads)
        launched.start_copying()
        return launched

    def _draw(self, chunks: tuple[Chunk, ...], hidden: BackboneOutput) -> SampleOutput | None:
        drawn = draws(chunks)
        if not drawn:
            return None
        masks, broken = self.rules.masks(drawn)
        for key, reason in broken.items():
            cause = reason.splitlines()[0]  # the rest may hold the answer so far
            logger.error("Request %s: its grammar cannot be followed: %s", key, cause)
            self._failed.append(self._fail(self._answers[key], "its grammar became too complex"))
        rows = self.programs.pack_rows(drawn, masks)
        out, self._drawn = self.programs.run_draw(self.params, hidden, rows)
        return out

    def _read(self, launched: LaunchedStep) -> list[RequestDelta]:
        """Wait for a step's draws and turn them into the requests' deltas."""
        tokens, tables = launched.read(), launched.logprobs(self.tokenizer)
        self._taps.absorb(launched.reads)
        now_s = time.monotonic()
        drawn = self.scheduler.commit(launched.work, tokens)
        deltas = self._absorb(drawn, tables, now_s)
        start_s = max(launched.start_s, self._last_end_s)
        self._accounts.note_read(launched.work, start_s, len(drawn), self.scheduler)
        self._last_end_s = now_s
        return deltas

    def _absorb(
        self, drawn: list[TokenDelta], tables: LogprobTables | None, now_s: float
    ) -> list[RequestDelta]:
        """Turn drawn tokens into the requests' deltas."""
        choices: defaultdict[str, list[ChoiceDelta]] = defaultdict(list)
        failed: list[RequestDelta] = []
        searching: set[str] = set()
        for delta in drawn:
            answer = self._answers.get(delta.sequence.request.id)
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
            choices[key] = self._beams.advance(self._answers[key], self.scheduler)
        alive = [
            (self._answers[key], told) for key, told in choices.items() if key in self._answers
        ]
        return [self._deliver(answer, told) for answer, told in alive if told] + failed

    def _fail(self, answer: Answer, cause: str) -> RequestDelta:
        """End one request whose answer cannot be made; the others go on."""
        self.scheduler.abort(answer.request.id)
        for index in range(answer.request.n):
            answer.finish_reasons.setdefault(index, FinishReason.ERROR.value)
        return self._deliver(answer, [], error=f"the request failed: {cause}")

    def _choice(
        self, answer: Answer, delta: TokenDelta, tables: LogprobTables | None
    ) -> ChoiceDelta:
        choice = answer.tell(delta, tables)
        if choice.finish_reason is not None and delta.finish_reason is None:  # by a stop string
            self.scheduler.finish(delta.sequence, FinishReason.STOP, choice.stop_reason)
        return choice

    def _deliver(
        self, answer: Answer, choices: list[ChoiceDelta], *, error: str | None = None
    ) -> RequestDelta:
        delta = answer.delta(choices, error=error, weights_version=self.weights_version)
        if delta.finished:
            del self._answers[answer.request.id]
            self.rules.drop(answer.request.id)
            self._beams.drop(answer.request.id)
            delta.captures = self._taps.drop(answer.request.id, answer.num_fed)
            record = answer.record(time.monotonic())
            for observer in self._accounts.observers:
                observer.on_finish(record)
        return delta

    def add_observer(self, observer: EngineObserver) -> None:
        """Tell `observer` of every step and every ended request."""
        self._accounts.observers.append(observer)

    def stats(self) -> EngineStats:
        """Return gauges and counters."""
        return self._accounts.stats(self.scheduler, self._compiles.count)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes unless a request holds blocks; return whether it was done."""
        return self.scheduler.pool.reset_prefix_cache()

    def update_params(self, params: ModelParams) -> int:
        """Replace the parameters by others of the same model; forget all cached prefixes.

        Args:
            params: in the form of `self.params`, or with plain matrices where those are packed.
        Returns:
            the new `weights_version`, which every result from now on has.
        Raises:
            ModelError: names the array that does not fit; then nothing has changed.
            OptionError: they are divided among devices.
            RuntimeError: a request is being answered.
        """
        check_may_update(self.config.mesh, self.num_live)
        self.params = fitted(params, self.params, self.config.model)
        assert self.reset_prefix_cache(), "a block is held, but by no request"
        self.weights_version += 1
        return self.weights_version

    def close(self) -> None:
        """Free the device's memory. The engine is unusable afterwards."""
        for leaf in jax.tree.leaves((self.pool, self.params)):
            if not leaf.is_deleted():
                leaf.delete()
