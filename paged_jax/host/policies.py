"""The order of service, one small class for each policy: who is admitted first, and preempted last.

What a policy says goes into a sequence's rank (queues.py): the smallest rank is served next, and of
the running sequences the largest loses its blocks first.
"""

from collections import defaultdict
from collections.abc import Iterable
from importlib import import_module
from typing import Protocol, cast

from paged_jax.config import OptionError
from paged_jax.host.prefix import PrefixCache
from paged_jax.host.request import Sequence


class Policy(Protocol):
    """What a policy may say; `key` alone is enough for most.

    Attributes:
        is_dynamic: keys change while sequences wait, so they are asked for before each admission.
    """

    is_dynamic: bool = False

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        """Return the sequence's place in the order of service; the smallest comes first."""
        ...

    def start(self, prefix: PrefixCache) -> None:
        """Called once, before anything else, with the scheduler's prefix cache."""

    def note_added(self, sequence: Sequence, waiting: Iterable[Sequence]) -> None:
        """Called when a request arrives, with the sequences that wait already."""

    def note_admitted(self, sequence: Sequence) -> None:
        """Called when a sequence is admitted, after a preemption too (`num_preemptions`)."""

    def note_token(self, sequence: Sequence) -> None:
        """Called for every token a sequence is given."""


class FirstCome(Policy):
    """In order of arrival."""

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        """All alike, so that the number of the arrival decides."""
        return ()


class ByPriority(Policy):
    """Lower priority values first, then by time of arrival."""

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        """The request's priority and time."""
        return (sequence.request.priority, sequence.request.arrival_s)


class ShortestFirst(Policy):
    """The fewest tokens first, counting the prompt and the longest answer asked for."""

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        """The most tokens the request may come to."""
        return (len(sequence.request.prompt) + sequence.request.max_tokens,)


class PrefixFirst(Policy):
    """The longest prompt prefix in the cache first, so that what is cached is used before it goes.

    A request without any may wait as long as others with one arrive.
    """

    is_dynamic = True

    def start(self, prefix: PrefixCache) -> None:
        """Take the cache to ask."""
        self._prefix = prefix

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        """Minus the blocks that are cached now."""
        return (-len(self._prefix.lookup(sequence)),)


class FairShare(Policy):
    """The client who was served least first: the virtual token counter.

    Requests of one `cache_salt` are one client's. An admitted prompt counts its tokens, each token
    given counts double; a client who comes back is lifted to the least counter of those who wait,
    so that no credit is saved up. Source: Sheng et al. 2024, arXiv:2401.00588, algorithm 2.
    """

    is_dynamic = True
    prompt_weight, output_weight = 1.0, 2.0

    def __init__(self) -> None:
        self.served: defaultdict[str | None, float] = defaultdict(float)
        self._left: str | None = None  # whose request was admitted last

    def note_added(self, sequence: Sequence, waiting: Iterable[Sequence]) -> None:
        """Lift the counter of a client none of whose requests waits."""
        client = sequence.request.cache_salt
        others = {each.request.cache_salt for each in waiting} or {self._left}
        if client not in others:
            lowest = min(self.served[other] for other in others)
            self.served[client] = max(self.served[client], lowest)

    def note_admitted(self, sequence: Sequence) -> None:
        """Charge the prompt once."""
        self._left = sequence.request.cache_salt
        if sequence.num_preemptions == 0:
            self.served[self._left] += self.prompt_weight * len(sequence.request.prompt)

    def note_token(self, sequence: Sequence) -> None:
        """Charge a token."""
        self.served[sequence.request.cache_salt] += self.output_weight

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        """What the client was served."""
        return (self.served[sequence.request.cache_salt],)


POLICIES: dict[str, type[Policy]] = {
    "fcfs": FirstCome,
    "priority": ByPriority,
    "shortest": ShortestFirst,
    "fair": FairShare,
    "prefix": PrefixFirst,
}


def make_policy(name: str) -> Policy:
    """Return a policy by its name in POLICIES, or by where it is: "module:Class".

    Raises:
        OptionError: there is none.
    """
    if name in POLICIES:
        return POLICIES[name]()
    module, _, attribute = name.partition(":")
    try:
        return cast(Policy, getattr(import_module(module), attribute)())
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise OptionError(
            f"--scheduling-policy must be one of {', '.join(POLICIES)} or MODULE:CLASS,"
            f" not {name!r}: {error}"
        ) from error
