"""Drives one scheduler at random, or rule by rule, against a shadow of the device's KV pool.

Whatever is shared, cached, copied, preempted or evicted, every computed position of every sequence
must hold its own history. Half of the runs schedule each step ahead of the draws of the one before.
"""

from collections import Counter
from dataclasses import replace
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from shadow_pool import BLOCK_SIZE, Pending, ShadowPool
from step_checks import check_admission, check_deltas, check_step, count_events

from paged_jax.config import CacheConfig, SchedulerConfig
from paged_jax.host.blocks import hash_blocks
from paged_jax.host.request import FinishReason, Request, Sequence, Status
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.host.saved import check_sequences, resume_sequences, save_sequences
from paged_jax.host.scheduler import Scheduler

MAX_MODEL_LEN = 40
EOS = 2


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
        assert step.chunks or before, "there is work, but nothing was scheduled"
        check_step(step, self.scheduler)
        check_admission(step, waiting, self.known)
        writes = self.shadow.pack(step, pending)
        during()
        self.shadow.run(step.copies, writes)
        drawn = [[draw() for _ in range(chunk.num_samples)] for chunk in step.chunks]
        deltas = self.commit(*before) if before else []
        self.in_flight = (step, drawn) if self.is_ahead and step.chunks else None
        if not self.is_ahead:
            deltas += self.commit(step, drawn)
        self.seen.update(count_events(step, self.scheduler, waiting, deltas))

    def pending(self) -> Pending:
        if self.in_flight is None:
            return {}
        pairs = zip(self.in_flight[0].chunks, self.in_flight[1], strict=True)
        return {chunk.sequence: tuple(tokens) for chunk, tokens in pairs}

    def commit(self, step, drawn):
        deltas = self.scheduler.commit(step, drawn)
        check_deltas(deltas, drawn)
        self.known += [d.sequence for d in deltas if d.sequence not in self.known]
        return deltas
