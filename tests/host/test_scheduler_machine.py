"""The scheduler under random requests, against a shadow of the device's KV pool.

The shadow keeps in each slot what its key and value depend on: the salt and all tokens up to the
position. Writes and copies are replayed as the device does them. So whatever is shared, cached,
copied, preempted or evicted, every computed position of every sequence must hold its own history.
Half of the runs schedule each step ahead of what the one before it draws.
"""

from collections import Counter
from dataclasses import replace
from itertools import count
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from paged_jax.config import CacheConfig, SchedulerConfig
from paged_jax.host.blocks import hash_blocks
from paged_jax.host.request import FinishReason, Request, ScheduledStep, Sequence, Status
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.host.saved import check_sequences, resume_sequences, save_sequences
from paged_jax.host.scheduler import Scheduler

BLOCK_SIZE = 4
MAX_MODEL_LEN = 40
EOS = 2
Content = tuple[str | None, tuple[int, ...]]
Pending = dict[Sequence, tuple[int, ...]]  # what the step before draws and the host does not know


class ShadowPool:
    """Slot -> what was written there last."""

    def __init__(self) -> None:
        self.slots: dict[int, Content] = {}

    def slot(self, sequence: Sequence, position: int) -> int:
        return sequence.block_table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE

    def pack(self, step: ScheduledStep, pending: Pending) -> list[tuple[int, Content]]:
        """What the step is going to write, fixed at launch: the host may change while it runs."""
        return [
            (self.slot(chunk.sequence, position), content(chunk.sequence, position, pending))
            for chunk in step.chunks
            for position in range(chunk.start, chunk.start + chunk.length)
        ]

    def run(self, copies: tuple[tuple[int, int], ...], writes: list[tuple[int, Content]]) -> None:
        """All copies at once, from what was there before; then all writes."""
        old = dict(self.slots)
        for source, target in copies:
            for offset in range(BLOCK_SIZE):
                moved = old.get(source * BLOCK_SIZE + offset, (None, ()))
                self.slots[target * BLOCK_SIZE + offset] = moved
        self.slots.update(writes)

    def verify(self, sequence: Sequence, end: int) -> None:
        for position in range(end):
            assert self.slots[self.slot(sequence, position)] == content(sequence, position)

    def verify_block(self, block: int, index: int, tokens: tuple[int, ...], salt: str | None):
        for offset in range(BLOCK_SIZE):
            stop = index * BLOCK_SIZE + offset + 1
            assert self.slots[block * BLOCK_SIZE + offset] == (salt, tokens[:stop])


def content(sequence: Sequence, position: int, pending: Pending | None = None) -> Content:
    tokens = sequence.tokens(0, position + 1)
    if len(tokens) <= position:
        tokens += (pending or {})[sequence]
    return sequence.request.cache_salt, tokens


class SchedulerMachine(RuleBasedStateMachine):
    """Drives one scheduler; counts what it saw in `seen`, so that a test can ask for all of it."""

    seen: ClassVar[Counter[str]] = Counter()

    @initialize(
        num_blocks=st.integers(4, 24),
        max_seqs=st.integers(3, 8),
        budget=st.integers(1, 24),
        policy=st.sampled_from(["fcfs", "priority", "shortest"]),
        prefix_caching=st.sampled_from([True, True, True, False]),
        partial_reuse=st.booleans(),
        is_ahead=st.booleans(),
    )
    def start(self, num_blocks, max_seqs, budget, policy, prefix_caching, partial_reuse, is_ahead):
        config = SchedulerConfig(max_seqs, budget, MAX_MODEL_LEN, policy)
        cache = CacheConfig(num_blocks, BLOCK_SIZE, prefix_caching, partial_reuse=partial_reuse)
        self.scheduler, self.shadow = Scheduler(config, cache), ShadowPool()
        self.num_usable = num_blocks - 1
        self.is_ahead, self.in_flight = is_ahead, None
        self.known: list[Sequence] = []  # every sequence there ever was
        self.num_added = 0

    # ---- rules ------------------------------------------------------------------------------

    @rule(
        prompt=st.builds(
            lambda period, length, tail: (*(period * 40)[:length], *tail),
            st.sampled_from([(1,), (1, 3), (1, 1, 3, 1)]),
            st.integers(1, 34),
            st.lists(st.sampled_from([1, 3]), max_size=3),
        ),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        max_tokens=st.integers(1, 30),
        priority=st.integers(0, 2),
        salt=st.sampled_from([None, None, None, "a"]),
        is_scored=st.sampled_from([False] * 5 + [True]),
    )
    def add(self, prompt, n, max_tokens, priority, salt, is_scored):
        if -(-(len(prompt) + 1) // BLOCK_SIZE) > self.num_usable:
            return
        request = self.make_request(prompt, max_tokens, priority, salt, n, is_scored)
        self.known.append(self.scheduler.add(request))

    def make_request(self, prompt, max_tokens, priority, salt, n, is_scored=False):
        self.num_added += 1
        return Request(
            id=str(self.num_added),
            prompt=prompt,
            sampling=SamplingParams(n=n, prompt_logprobs=0 if is_scored else None),
            seed=0,
            max_tokens=max_tokens,
            eos_ids=(EOS,),
            priority=priority,
            cache_salt=salt,
            arrival_s=float(self.num_added // 2),
        )

    @precondition(lambda self: self.scheduler.has_work)
    @rule(
        data=st.data(),
        n=st.sampled_from([1, 1, 3]),
        max_tokens=st.integers(1, 30),
        has_other_salt=st.sampled_from([False, False, False, True]),
    )
    def fork(self, data, n, max_tokens, has_other_salt):
        live = [seq for seq in self.known if seq.status is not Status.FINISHED]
        parent = data.draw(st.sampled_from(live))
        prompt = parent.tokens(0, data.draw(st.integers(1, parent.num_tokens)))
        if -(-(len(prompt) + 1) // BLOCK_SIZE) > self.num_usable or len(prompt) >= MAX_MODEL_LEN:
            return
        salt = "other" if has_other_salt else parent.request.cache_salt
        request = self.make_request(prompt, max_tokens, 1, salt, n)
        self.known.append(self.scheduler.fork(request, parent))
        self.seen["forks of requests"] += self.known[-1].num_computed > 0

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data(), token=st.sampled_from([1, 1, 1, 3, 3, EOS]), is_greedy=st.booleans())
    def step(self, data, token, is_greedy):
        draw = (lambda: token) if is_greedy else lambda: data.draw(st.sampled_from([1, 1, 3, EOS]))
        self.run_step(draw)

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data())
    def abort_during_step(self, data):
        victim = data.draw(st.integers(1, self.num_added))
        self.run_step(lambda: 1, during=lambda: self.scheduler.abort(str(victim)))

    @precondition(lambda self: self.num_added > 0)
    @rule(data=st.data())
    def abort(self, data):
        for sequence in self.scheduler.abort(str(data.draw(st.integers(1, self.num_added)))):
            assert sequence.finish_reason is FinishReason.ABORT

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def finish(self, data):
        sequence = data.draw(st.sampled_from(self.known))
        self.scheduler.finish(sequence, FinishReason.STOP, "stop string")
        assert sequence.status is Status.FINISHED

    @precondition(lambda self: self.scheduler.has_work)
    @rule(num_blocks=st.integers(4, 24))
    def move_to_another_pool(self, num_blocks):
        """A step that is on its way is lost; its draws are made again."""
        old, old_slots = self.scheduler, self.shadow.slots
        live = sorted(old.sequences, key=lambda sequence: sequence.rank)
        if max(seq.num_tokens for seq in live) >= (num_blocks - 1) * BLOCK_SIZE:
            return
        saved, slots = save_sequences(old)
        requests = {sequence.request.id: sequence.request for sequence in live}
        check_sequences(saved, requests, len(slots))
        cache = replace(old.cache, num_blocks=num_blocks)
        self.scheduler, self.shadow = Scheduler(old.config, cache), ShadowPool()
        self.num_usable, self.in_flight = num_blocks - 1, None
        moved, writes = resume_sequences(self.scheduler, saved, requests)
        self.shadow.slots = {slot: old_slots[slots[row]] for row, slot in writes}
        self.known = [seq for seq in self.known if seq.status is Status.FINISHED] + moved
        self.seen["moved"] += self.scheduler.num_running

    @rule()
    def reset_prefix_cache(self):
        is_idle = self.scheduler.num_running == 0
        assert self.scheduler.pool.reset_prefix_cache() is is_idle

    # ---- what has to hold -------------------------------------------------------------------

    @invariant()
    def books_balance(self):
        self.scheduler.check()

    @invariant()
    def computed_positions_hold_their_history(self):
        for sequence in self.running():
            self.shadow.verify(sequence, sequence.num_computed)

    @invariant()
    def cached_blocks_hold_what_their_hash_says(self):
        for sequence in self.known:
            tokens, salt = sequence.tokens(0, sequence.num_tokens), sequence.request.cache_salt
            hashes = hash_blocks(tokens, BLOCK_SIZE, salt=salt)
            for index, block in enumerate(self.scheduler.pool.match_prefix(hashes)):
                self.shadow.verify_block(block, index, tokens, salt)

    @invariant()
    def usage_counts_each_held_slot_once(self):
        held = {
            self.shadow.slot(sequence, position)
            for sequence in self.running()
            for position in range(sequence.num_computed)
        }
        assert self.scheduler.usage().num_tokens == len(held)

    def teardown(self):
        """Whatever state it is in, everything ends when driven on, and all blocks come back."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(400 * len(self.known) + 1):
            if not self.scheduler.has_work:
                break
            self.run_step(lambda: 3)
            self.books_balance()
            self.computed_positions_hold_their_history()
        assert all(sequence.status is Status.FINISHED for sequence in self.known)
        assert self.scheduler.pool.num_free == self.num_usable

    # ---- driving ----------------------------------------------------------------------------

    def running(self) -> list[Sequence]:
        return [sequence for sequence in self.known if sequence.status is Status.RUNNING]

    def run_step(self, draw, during=lambda: None):
        waiting = [seq for seq in self.known if seq.status is Status.WAITING]
        before, pending = self.in_flight, self.pending()
        step = self.scheduler.schedule(ahead_of=before[0] if before else None)
        self.check_step(step, waiting)
        writes = self.shadow.pack(step, pending)
        during()
        self.shadow.run(step.copies, writes)
        drawn = [[draw() for _ in range(chunk.num_samples)] for chunk in step.chunks]
        deltas = self.commit(*before) if before else []
        self.in_flight = (step, drawn) if self.is_ahead and step.chunks else None
        if not self.is_ahead:
            deltas += self.commit(step, drawn)
        self.count(step, waiting, deltas)

    def pending(self) -> Pending:
        if self.in_flight is None:
            return {}
        pairs = zip(self.in_flight[0].chunks, self.in_flight[1], strict=True)
        return {chunk.sequence: tuple(tokens) for chunk, tokens in pairs}

    def commit(self, step, drawn):
        deltas = self.scheduler.commit(step, drawn)
        self.check_deltas(deltas, drawn)
        self.known += [d.sequence for d in deltas if d.sequence not in self.known]
        return deltas

    def check_step(self, step, waiting):
        assert step.chunks or self.in_flight, "there is work, but nothing was scheduled"
        assert step.num_tokens <= self.scheduler.config.max_tokens_per_step
        assert step.num_samples <= self.scheduler.config.max_seqs
        sequences = [chunk.sequence for chunk in step.chunks]
        assert len(set(sequences)) == len(sequences), "a sequence has two chunks"
        assert not set(sequences) & set(step.preempted), "a preempted sequence is computed"
        targets = [target for _, target in step.copies]
        assert len(set(targets)) == len(targets) and 0 not in targets
        for chunk in step.chunks:
            assert chunk.start + chunk.length == chunk.sequence.num_computed
            is_last = chunk.sequence.num_missing == 0
            assert chunk.num_samples == (chunk.sequence.num_samples if is_last else 0)
        admitted = [sequence for sequence in sequences if sequence in waiting]
        if admitted:
            assert not step.preempted, "admitted while blocks were short"
            self.check_admission(admitted)

    def check_admission(self, admitted):
        """Strict order, and nobody else is still about to compute a block they might share."""
        ranks = [sequence.rank for sequence in admitted]
        left = [seq.rank for seq in self.known if seq.status is Status.WAITING]
        assert sorted(ranks) == ranks and all(ranks[-1] < rank for rank in left)
        others = [seq for seq in self.running() if seq is not admitted[-1]]
        assert not any(seq.num_missing > seq.num_pending for seq in others)

    def check_deltas(self, deltas, drawn):
        flat = [token for tokens in drawn for token in tokens]
        for delta in deltas:
            assert delta.token == flat[delta.row] == delta.sequence.output[-1]
            assert delta.finish_reason is delta.sequence.finish_reason

    def count(self, step, waiting, deltas):
        resumed = [c for c in step.chunks if c.sequence in waiting and c.sequence.num_preemptions]
        self.seen.update(
            {
                "forks": sum(delta.sequence.index > 0 for delta in deltas),
                "copies": len(step.copies),
                "preemptions": len(step.preempted),
                "preempted choices": sum(sequence.index > 0 for sequence in step.preempted),
                "hits inside a block": sum((s.num_cached or 0) % BLOCK_SIZE > 0 for s in waiting),
                "cache hits": sum(bool(seq.num_cached) for seq in waiting),
                "resumed on cached blocks": sum(chunk.start > 0 for chunk in resumed),
                "shared when filled": sum(map(self.is_shared_when_filled, step.chunks)),
            }
        )

    def is_shared_when_filled(self, chunk):
        first, last = chunk.start // BLOCK_SIZE, (chunk.start + chunk.length) // BLOCK_SIZE
        filled = chunk.sequence.block_table[first:last]
        return any(self.scheduler.pool.ref_count(block) > 1 for block in filled)


def test_every_position_holds_its_own_history_whatever_happens():
    SchedulerMachine.seen.clear()
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],  # on a busy machine
        ),
    )
    assert len(SchedulerMachine.seen) == 10
    assert all(SchedulerMachine.seen.values()), SchedulerMachine.seen


def make_machine(num_blocks: int, budget: int) -> SchedulerMachine:
    machine = SchedulerMachine()
    machine.start(
        num_blocks=num_blocks,
        max_seqs=8,
        budget=budget,
        policy="priority",
        prefix_caching=True,
        partial_reuse=False,
        is_ahead=False,
    )
    return machine


def add_to(machine: SchedulerMachine, prompt: tuple[int, ...], n: int, priority: int) -> None:
    machine.add(prompt=prompt, n=n, max_tokens=6, priority=priority, salt=None, is_scored=False)


def run_story(machine: SchedulerMachine) -> ScheduledStep:
    """One step of distinct tokens, with all checks."""
    steps: list[ScheduledStep] = []
    schedule, tokens = machine.scheduler.schedule, count(10)
    machine.scheduler.schedule = lambda **_: steps.append(schedule()) or steps[-1]
    machine.run_step(lambda: next(tokens))
    machine.scheduler.schedule = schedule
    machine.computed_positions_hold_their_history()
    return steps[0]


def test_a_freed_copy_source_may_be_the_target_of_another_copy_in_the_same_step():
    machine = make_machine(num_blocks=6, budget=6)
    add_to(machine, tuple(range(10)), n=2, priority=1)
    run_story(machine)
    add_to(machine, (1, 1), n=2, priority=0)
    run_story(machine)

    step = run_story(machine)

    assert step.copies == ((3, 5), (4, 3))
    machine.teardown()


def test_the_target_of_a_dropped_copy_may_be_the_target_of_another_copy_in_the_same_step():
    machine = make_machine(num_blocks=11, budget=12)
    add_to(machine, tuple(range(22)), n=3, priority=1)
    run_story(machine)
    add_to(machine, (1,), n=2, priority=0)
    add_to(machine, (3,), n=2, priority=0)
    run_story(machine)

    step = run_story(machine)

    assert [sequence.rank[-1] for sequence in step.preempted] == [2, 1]
    assert step.copies == ((6, 9), (7, 6), (8, 10))
    machine.teardown()
