"""The unfinished sequences: those that run, in order of admission, and those that wait, by rank.

A rank is the policy's key, then the number of the arrival, then the choice; the smallest is served
next. A sequence keeps the rank with which it was admitted.
"""

from bisect import insort
from collections.abc import Sequence as Seq

from paged_jax.host.policies import Policy
from paged_jax.host.request import Sequence, Status
from paged_jax.host.taps import MAX_TAPPED


class Queues:
    """Keeps every unfinished sequence in the queue that its status says.

    Attributes:
        running: those that hold blocks, in order of admission.
        waiting: those that are new or were preempted, sorted by rank.
        of_request: the unfinished sequences of each request.
    """

    def __init__(self, policy: Policy, max_seqs: int):
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.of_request: dict[str, list[Sequence]] = {}
        self._policy = policy
        self._max_seqs = max_seqs
        self._num_added = 0

    def add(self, choices: Seq[Sequence]) -> None:
        """Let the sequences of a new request wait."""
        self.of_request[choices[0].request.id] = list(choices)
        self._num_added += 1
        for sequence in choices:
            self._policy.note_added(sequence, self.waiting)
            sequence.rank = (*self._policy.key(sequence), self._num_added, sequence.index)
            self._wait(sequence)

    def seat(self, sequence: Sequence) -> None:
        """Let a waiting sequence, which has been given its blocks, run."""
        self.waiting.remove(sequence)
        sequence.status = Status.RUNNING
        self.running.append(sequence)
        self._policy.note_admitted(sequence)

    def unseat(self, sequence: Sequence) -> None:
        """Let a running sequence wait: by arrival it comes out at the front."""
        self.running.remove(sequence)
        self._wait(sequence)

    def insert(self, at: int, children: Seq[Sequence]) -> None:
        """Let sequences that share the blocks of running ones run from place `at` on."""
        self.running[at:at] = children
        self.of_request[children[0].request.id] += children

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, which has ended."""
        queue = self.running if sequence.status is Status.RUNNING else self.waiting
        queue.remove(sequence)
        sequence.status = Status.FINISHED
        siblings = self.of_request[sequence.request.id]
        siblings.remove(sequence)
        if not siblings:
            del self.of_request[sequence.request.id]

    @property
    def num_seats_taken(self) -> int:
        """Running sequences, counting a request that is going to fork as its n."""
        return sum(sequence.num_samples for sequence in self.running)

    def has_seats(self, sequence: Sequence) -> bool:
        """Return whether a waiting sequence, with all its choices, could run beside the others."""
        return self.num_seats_taken + sequence.num_samples <= self._max_seqs

    def first_waiting(self) -> Sequence | None:
        """Sort waiting sequences as the policy has it now; return the first if it has seats.

        While as many requests with taps run as may, others pass those that wait.
        """
        if self._policy.is_dynamic:
            for sequence in self.waiting:
                sequence.rank = (*self._policy.key(sequence), *sequence.rank[-2:])
            self.waiting.sort(key=lambda sequence: sequence.rank)
        first = self.waiting[0] if self.waiting else None
        if first and first.request.is_tapped and self._num_tapped >= MAX_TAPPED:
            first = next((each for each in self.waiting if not each.request.is_tapped), None)
        return first if first and self.has_seats(first) else None

    @property
    def _num_tapped(self) -> int:
        return sum(sequence.request.is_tapped for sequence in self.running)

    def last_running(self) -> Sequence:
        """Return the running sequence that is last in the order of service."""
        return max(self.running, key=lambda sequence: sequence.rank)

    def check(self) -> None:
        """Raise AssertionError unless every sequence is in the right queue and in its place."""
        live = [sequence for sequences in self.of_request.values() for sequence in sequences]
        assert set(live) == {*self.running, *self.waiting}, "a sequence is in no queue"
        assert len(live) == len(self.running) + len(self.waiting), "a sequence is in two queues"
        assert all(sequence.status is Status.RUNNING for sequence in self.running)
        assert all(sequence.status is Status.WAITING for sequence in self.waiting)
        assert not any(sequence.block_table for sequence in self.waiting), "waiting with blocks"
        ranks = [sequence.rank for sequence in self.waiting]
        assert ranks == sorted(ranks), "the waiting queue is out of order"
        assert self.num_seats_taken <= self._max_seqs, "too many sequences run"

    def _wait(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        insort(self.waiting, sequence, key=lambda waiting: waiting.rank)
