"""The Scheduler decides what each step computes: which sequences, how many tokens, in which blocks.

Its rules are vLLM v1's: running sequences first, then waiting ones in strict order, within a token
budget; a long prompt is computed in chunks beside other sequences' decodes; when blocks run out,
the sequence that is last in the order of service loses its blocks and is computed again later. It
knows no arrays and no clock, so a simulator can drive it. Call `schedule` and `commit` in turn, or
schedule one step ahead, while what the step before it draws is pending.
"""

from collections.abc import Sequence as Seq

from paged_jax.config import CacheConfig, SchedulerConfig
from paged_jax.host.blocks import BlockPool
from paged_jax.host.ending import ending, num_ready
from paged_jax.host.forking import num_shareable
from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.limits import check_fits, max_len
from paged_jax.host.plan import BlockCopy, StepPlan
from paged_jax.host.policies import Policy, make_policy
from paged_jax.host.prefix import PrefixCache
from paged_jax.host.queues import Queues
from paged_jax.host.request import (
    FinishReason,
    Request,
    ScheduledStep,
    Sequence,
    Status,
    TokenDelta,
)
from paged_jax.host.tables import BlockTables
from paged_jax.host.trace import PoolUsage


class Scheduler:
    """Owns the sequences and the block pool.

    Attributes:
        pool: the blocks.
        prefix: the prompts found in them, and how many of their tokens.
        max_len: tokens at which every sequence ends.
        num_preemptions: sequences that lost their blocks so far.
        num_copies: blocks copied on write so far.
    """

    def __init__(
        self, config: SchedulerConfig, cache: CacheConfig, *, policy: Policy | None = None
    ):
        self.config = config
        self.cache = cache
        self.pool = BlockPool(cache.num_blocks, prefix_caching=cache.prefix_caching)
        self.prefix = PrefixCache(self.pool, cache)
        self.max_len = max_len(config, cache)
        self.num_preemptions = 0
        self.num_copies = 0
        self._tables = BlockTables(self.pool, cache.block_size)
        self._policy = policy or make_policy(config.policy)
        self._policy.start(self.prefix)
        self._queues = Queues(self._policy, config.max_seqs)

    def add(self, request: Request) -> Sequence:
        """Queue a request and return its first sequence.

        Raises:
            InvalidRequest: its id is in use, or it could never be served.
        """
        if self.live(request.id):
            raise InvalidRequest(f"request id {request.id!r} is in use", "request_id")
        check_fits(len(request.prompt), request.n, self.config, self.cache)
        sequence = Sequence(request, fork_pending=request.n > 1)
        self._queues.add([sequence])
        return sequence

    def fork(self, request: Request, parent: Sequence) -> Sequence:
        """Queue a request that begins with tokens of a live sequence, and let it share its blocks.

        Without a free seat it waits like any other, and is admitted with what is still cached.

        Raises:
            InvalidRequest: its id is in use, or it could never be served.
        """
        child = self.add(request)
        num_shared = num_shareable(parent, request)
        if num_shared and self.has_seats(child):
            self._tables.share(parent, child, num_shared)
            child.num_cached = num_shared
            self._queues.seat(child)
        return child

    def schedule(self, *, ahead_of: ScheduledStep | None = None) -> ScheduledStep:
        """Decide the next step and advance the sequences as if it had run.

        Args:
            ahead_of: the step launched last if what it draws is pending; to be committed next. A
                sequence preempted meanwhile will draw its token again.
        """
        if ahead_of is not None:
            ahead_of.mark_pending()
        plan = StepPlan(self._tables, self._queues, self.config.max_tokens_per_step)
        return self._fill(plan, is_alone=ahead_of is None)

    def schedule_beside(self, flying: Seq[ScheduledStep], lanes: int) -> ScheduledStep:
        """Decide a step of sequences that no step in flight draws for.

        Args:
            flying: the steps in flight, to be committed in order.
            lanes: how many steps share the sequences; this one takes one in so many of them.
        """
        chunks = (chunk for step in flying for chunk in step.chunks)
        awaited = frozenset(chunk.sequence for chunk in chunks if chunk.num_samples)
        share = -(-(self.num_running + self.num_waiting) // lanes)
        budget = self.config.max_tokens_per_step
        plan = StepPlan(self._tables, self._queues, budget, share, awaited)
        return self._fill(plan, is_alone=not flying)

    def _fill(self, plan: StepPlan, *, is_alone: bool) -> ScheduledStep:
        self.prefix.begin_step()
        self._schedule_running(plan)
        for sequence in plan.chunks:  # not earlier: a preempted chunk is never computed
            self.prefix.publish(sequence)
        if not plan.preempted:
            self._admit_waiting(plan)
        if is_alone and not (plan.chunks or plan.preempted) and self._queues.running:
            # All that runs are beams whose siblings find no blocks: the last gives its own up.
            plan.preempt_last()
        self.num_preemptions += len(plan.preempted)
        self.num_copies += len(plan.copies)
        return plan.close()

    def _schedule_running(self, plan: StepPlan) -> None:
        """Give running sequences their missing tokens, in order, as far as the budget reaches."""
        for sequence in tuple(self._queues.running):
            if plan.is_full:
                return
            length = min(num_ready(sequence, max_len=self.max_len), plan.budget)
            is_running = sequence.status is Status.RUNNING  # not preempted by one before it
            if is_running and length > 0 and plan.make_room(sequence, length):
                plan.place(sequence, length)

    def _admit_waiting(self, plan: StepPlan) -> None:
        """Admit waiting sequences in order until budget, seats or blocks run out.

        Budget is left only if every running sequence gets all its missing tokens in this step, and
        the blocks they fill are published by now: so no block is computed twice side by side.
        """
        while not plan.is_full and (sequence := self._queues.first_waiting()):
            hits = self.prefix.lookup(sequence)
            is_awaited = sequence in plan.awaited  # preempted while its step is in flight
            is_cut = plan.budget < self.config.first_chunk
            if is_awaited or is_cut or not self._tables.can_start(sequence, hits):
                return
            copy = self._admit(sequence, hits)
            length = min(num_ready(sequence, max_len=self.max_len), plan.budget)
            plan.place(sequence, length, copy)
            self.prefix.publish(sequence)

    def _admit(self, sequence: Sequence, hits: list[int]) -> BlockCopy | None:
        """Let a sequence run, starting with the cached blocks of its prefix.

        Returns the copy of the block that it shares the first tokens of, if there is one.
        """
        self._tables.start(sequence, hits)
        head = self.prefix.find_head(sequence)
        copy = self._tables.start_inside(sequence, *head) if head else None
        self.prefix.note_admission(sequence)
        self._queues.seat(sequence)
        return copy

    def commit(self, step: ScheduledStep, tokens: Seq[Seq[int]]) -> list[TokenDelta]:
        """Append what a step has drawn, fork where it completed a prompt, end what is finished.

        Args:
            tokens: for each chunk of the step its `num_samples` ids. Those of sequences that were
                ended or preempted while the step ran are ignored. Beams wait for `branch`.
        """
        deltas: list[TokenDelta] = []
        next_row = 0
        for chunk, drawn in zip(step.chunks, tokens, strict=True):
            assert len(drawn) == chunk.num_samples, "a chunk has too few or too many samples"
            rows = range(next_row, next_row + len(drawn))
            next_row = rows.stop
            if drawn and chunk.sequence.status is Status.RUNNING:
                choices = self._choices(chunk.sequence)
                is_beam = chunk.sequence.request.sampling.beams is not None
                deltas += map(TokenDelta if is_beam else self._append, choices, drawn, rows)
        return deltas

    def _choices(self, sequence: Sequence) -> list[Sequence]:
        """Fork a request whose prompt is computed into its n choices, which share its blocks."""
        if not sequence.fork_pending:
            return [sequence]
        sequence.fork_pending = False
        others = [self._child(sequence, index) for index in range(1, sequence.request.n)]
        self._queues.insert(self._queues.running.index(sequence) + 1, others)
        return [sequence, *others]

    def _append(self, sequence: Sequence, token: int, row: int) -> TokenDelta:
        """Give a sequence its next token and end it if that was its last."""
        sequence.output.append(token)
        sequence.num_pending = 0
        self._policy.note_token(sequence)
        reason, stop_reason = ending(sequence, max_len=self.max_len)
        if reason is not None:
            self.finish(sequence, reason, stop_reason)
        else:
            self.prefix.publish(sequence)
        return TokenDelta(sequence, token, row, reason)

    def branch(self, request_id: str, picks: Seq[tuple[int, int]]) -> None:
        """Replace the beams of a request by others, on the same blocks.

        Args:
            picks: for each new beam the index of the one it continues, and its next token.
        """
        old = self.live(request_id)
        assert all(beam.status is Status.RUNNING for beam in old), "a beam has not been computed"
        parents = {beam.index: beam for beam in old}
        children = [self._child(parents[parent], index) for index, (parent, _) in enumerate(picks)]
        for child, (parent, token) in zip(children, picks, strict=True):
            child.output = [*parents[parent].output, token]
        self._queues.insert(min(map(self._queues.running.index, old)), children)
        for beam in old:
            self.finish(beam, FinishReason.STOP)

    def _child(self, sequence: Sequence, index: int) -> Sequence:
        child = sequence.sibling(index)
        self._tables.share(sequence, child)
        return child

    def abort(self, request_id: str) -> list[Sequence]:
        """End all sequences of a request and return them; an unknown id has ended already."""
        sequences = list(self.live(request_id))
        for sequence in sequences:
            self.finish(sequence, FinishReason.ABORT)
        return sequences

    def finish(
        self, sequence: Sequence, reason: FinishReason, stop_reason: int | str | None = None
    ) -> None:
        """End a sequence and release its blocks; does nothing if it has ended already."""
        if sequence.status is Status.FINISHED:
            return
        self._queues.remove(sequence)
        self.prefix.publish_rest(sequence)
        self._tables.release(sequence)
        sequence.finish_reason, sequence.stop_reason = reason, stop_reason

    def adopt(self, choices: Seq[Sequence]) -> None:
        """Queue the unfinished choices of a request that began elsewhere."""
        self._queues.add(choices)

    def has_seats(self, sequence: Sequence) -> bool:
        """Return whether a waiting sequence, with all its choices, could run beside the others."""
        return self._queues.has_seats(sequence)

    def resume(self, sequence: Sequence, block_table: list[int], num_computed: int) -> None:
        """Let a waiting sequence run on blocks that hold its first tokens; it has a seat."""
        sequence.block_table, sequence.num_computed = block_table, num_computed
        self._queues.seat(sequence)
        self.prefix.publish(sequence)

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self._queues.of_request)

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks; a request not yet forked counts once."""
        return len(self._queues.running)

    @property
    def num_waiting(self) -> int:
        """Sequences that are new or were preempted."""
        return len(self._queues.waiting)

    @property
    def sequences(self) -> list[Sequence]:
        """Those that hold blocks as admitted, then those that wait in order of service."""
        return [*self._queues.running, *self._queues.waiting]

    def live(self, request_id: str) -> Seq[Sequence]:
        """Return the unfinished sequences of a request; none if it has ended."""
        return tuple(self._queues.of_request.get(request_id, ()))

    def usage(self) -> PoolUsage:
        """Return how full the pool is."""
        return self._tables.usage(self._queues.running)

    def check(self) -> None:
        """Raise AssertionError unless queues, block tables and pool agree."""
        self._tables.check(self._queues.running)
        self._queues.check()
