"""The engine: takes requests, and turns them step by step into what they are answered.

A step is decided by the scheduler, run by the executor and read into the live requests. Not
thread-safe: one thread adds, steps and aborts. One request's fault ends that request
(`live_requests`); a fault of the step itself ends the engine, since the donated pool is gone.
"""

import time
from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

from paged_jax.config import EngineConfig
from paged_jax.device.draw_extras import LogitsProcessor
from paged_jax.device.step_batch import NOTHING_PENDING
from paged_jax.engine.accounts import Accounts
from paged_jax.engine.admission import check_request, make_fork, make_request
from paged_jax.engine.engine_state import EngineCore, capture, continue_state
from paged_jax.engine.executor import Executor
from paged_jax.engine.launched import LaunchedStep
from paged_jax.engine.live_requests import LiveRequests
from paged_jax.engine.snapshot import read_snapshot, write_snapshot
from paged_jax.engine.token_rules import RuleBook, with_breakers
from paged_jax.engine.weight_update import check_may_update, fitted
from paged_jax.host.forking import find_choice, first_tokens
from paged_jax.host.recording import open_scheduler
from paged_jax.host.request import ScheduledStep, Sequence
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.host.saved import SnapshotError
from paged_jax.host.scheduler import Scheduler
from paged_jax.host.trace import EngineObserver, EngineStats
from paged_jax.models.params import ModelParams
from paged_jax.outputs import RequestDelta
from paged_jax.text.grammar import Grammar
from paged_jax.text.tokenizer import Tokenizer


class Engine:
    """Generates: `add` requests, call `step` while `has_work`, collect the deltas.

    Attributes:
        config: everything resolved.
        tokenizer: the model's.
        executor: has what is on the device, and runs the steps there.
        default_sampling: sampling settings the model's authors recommend.
        startup: seconds of each phase of the start, in order; empty if it was not timed.
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
        self.executor = Executor(config, params, logits_processor)
        self._in_flight: deque[LaunchedStep] = deque()  # oldest first
        self._last_end_s = 0.0
        self._accounts = Accounts()
        scheduler = open_scheduler(config)
        self._live = LiveRequests(config.model, tokenizer, scheduler, self._accounts)

    def check(self, prompt: Seq[int], params: SamplingParams) -> None:
        """Raise InvalidRequest, naming the field and the limit, if this can never be served.

        Compiles the grammar of a structured answer: not for the stepping thread.
        """
        self.check_size(prompt, params)
        self.rules.compile(params)

    def check_size(self, prompt: Seq[int], params: SamplingParams) -> None:
        """Do what `check` does, without the grammar; cheap enough for the stepping thread."""
        check_request(prompt, params, self.config)

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
        self._live.add(request, grammar)

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
        self._live.add(request, self.rules.compile(request.sampling), begun=tuple(begun))

    def abort(self, request_id: str) -> RequestDelta | None:
        """End a request in whatever state; return its last delta, None if it has ended already."""
        return self._live.abort(request_id)

    def step(self) -> list[RequestDelta]:
        """Launch the next step on the device, then deliver what the one before it drew.

        Without overlap, or where the next step needs what this one draws, it is delivered at once.
        """
        before = self._in_flight.popleft() if self._in_flight else None
        launched = self._launch(before)
        deltas = (self._read(before) if before else []) + self._live.take_failed()
        if launched and (launched.needs_reading or not self.config.async_scheduling):
            return deltas + self._read(launched)
        if launched and self.scheduler.has_work:  # otherwise nobody wants what it draws
            self._in_flight.append(launched)
        return deltas

    def _launch(self, before: LaunchedStep | None) -> LaunchedStep | None:
        """Schedule and start the step after `before`; None if there is nothing to compute."""
        start_s = time.monotonic()
        ahead_of, pending = (before.work, before.rows()) if before else (None, NOTHING_PENDING)
        return self._start(self.scheduler.schedule(ahead_of=ahead_of), start_s, pending)

    def _start(
        self,
        work: ScheduledStep,
        start_s: float,
        pending: Mapping[Sequence, int] = NOTHING_PENDING,
    ) -> LaunchedStep | None:
        """Start a scheduled step's programs; None if there is nothing to compute.

        Args:
            start_s: when the step was begun, on the monotonic clock.
            pending: the rows of the step before that drew tokens this one goes on from.
        """
        self._accounts.note_scheduled(work, start_s, self._live.answers)
        if not work.chunks:
            return None
        return self.executor.launch(work, self._live, start_s=start_s, pending=pending)

    def _read(self, launched: LaunchedStep) -> list[RequestDelta]:
        """Wait for a step's draws and turn them into the requests' deltas."""
        tokens, tables = launched.read(), launched.logprobs(self.tokenizer)
        self._live.taps.absorb(launched.reads)
        now_s = time.monotonic()
        drawn = self.scheduler.commit(launched.work, tokens)
        deltas = self._live.absorb(drawn, tables, now_s)
        start_s = max(launched.start_s, self._last_end_s)
        self._accounts.note_read(launched.work, start_s, len(drawn), self.scheduler)
        self._last_end_s = now_s
        return deltas

    def snapshot(self, path: str | Path) -> None:
        """Write everything the engine is in the middle of to a new folder, and go on.

        A step that is on its way is left out: whoever continues draws the same tokens again.

        Raises:
            SnapshotError: `path` exists or cannot be written.
        """
        write_snapshot(capture(self._core()), path)

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
        return continue_state(read_snapshot(path), self._core())

    def _core(self) -> EngineCore:
        return EngineCore(self.config, self.executor, self._live)

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
        self.executor.params = fitted(params, self.params, self.config.model)
        assert self.reset_prefix_cache(), "a block is held, but by no request"
        self._live.weights_version += 1
        return self.weights_version

    def add_observer(self, observer: EngineObserver) -> None:
        """Tell `observer` of every step and every ended request."""
        self._accounts.observers.append(observer)

    def stats(self) -> EngineStats:
        """Return gauges and counters."""
        return self._accounts.stats(self.scheduler, self.executor.compiles.count)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes unless a request holds blocks; return whether it was done."""
        return self.scheduler.pool.reset_prefix_cache()

    def close(self) -> None:
        """Free the device's memory. The engine is unusable afterwards."""
        self.executor.close()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work

    @property
    def num_live(self) -> int:
        """Requests that have not ended."""
        return len(self._live.answers)

    @property
    def params(self) -> ModelParams:
        """The model's, as the programs take them."""
        return self.executor.params

    @property
    def weights_version(self) -> int:
        """How often the parameters were replaced."""
        return self._live.weights_version

    @property
    def rules(self) -> RuleBook:
        """What live requests may draw."""
        return self._live.rules

    @property
    def scheduler(self) -> Scheduler:
        """Decides what each step computes; another may take its place while no request lives."""
        return self._live.scheduler

    @scheduler.setter
    def scheduler(self, scheduler: Scheduler) -> None:
        assert not self.num_live, "a request lives"
        self._live.scheduler = scheduler
        self._in_flight.clear()  # nobody wants what that draws
