"""What is asked of the engine and how far it has come: Request, Sequence, and a step's Chunks.

A `Request` is immutable. A `Sequence` is one choice of it being generated, the only mutable record;
the `Scheduler` owns it. Lengths and positions are in tokens.
"""

import sys
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple

from paged_jax.host.sampling_params import SamplingParams


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Status(Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt and how to continue it. Ids are unique among live requests.

    Attributes:
        seed: the seed in force (drawn from the operating system when the user gave none).
        max_tokens: the answer length in force, clamped to the room the context leaves; at least 1.
        eos_ids: the model's end-of-sequence ids.
        breaker_ids: tokens that no repetition reaches across, for DRY.
        cache_salt: separates this request's prefix-cache content from others'.
        arrival_s: logical or monotonic time of arrival, in seconds.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    max_tokens: int
    eos_ids: tuple[int, ...] = ()
    priority: int = 0
    cache_salt: str | None = None
    arrival_s: float = 0.0
    breaker_ids: frozenset[int] = frozenset()

    @property
    def n(self) -> int:
        """Number of choices."""
        return self.sampling.n

    @property
    def is_tapped(self) -> bool:
        """Whether layers are read or changed for it."""
        return self.sampling.taps is not None

    @property
    def chunk_limit(self) -> int:
        """Most of its tokens that a step may compute."""
        taps = self.sampling.taps
        return (taps.chunk_limit if taps else None) or sys.maxsize


@dataclass(eq=False)
class Sequence:
    """One choice of a request, being generated. Mutable; owned by the Scheduler.

    Before the prompt is computed a request of n choices is one sequence (index 0, `fork_pending`);
    the step that samples its first tokens forks it into n.

    Attributes:
        index: which choice.
        output: generated ids, in order.
        num_pending: 1 while a token drawn by a launched step has not reached the host, otherwise 0.
        num_computed: tokens whose KV is (or will be, once the scheduled steps have run) in the
            pool.
        block_table: block i holds tokens [i * block_size, (i + 1) * block_size).
        block_hashes: hash chain of the full blocks known so far.
        num_published: of its blocks, from the first on, those the prefix cache knows.
        num_cached: prompt tokens served from the prefix cache at first admission.
        num_preemptions: how often its blocks were taken away.
        rank: place in the order of service, set by the Scheduler; the smallest comes first.
    """

    request: Request
    index: int = 0
    fork_pending: bool = False
    output: list[int] = field(default_factory=list[int])
    num_pending: int = 0
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list[int])
    block_hashes: list[bytes] = field(default_factory=list[bytes])
    num_published: int = 0
    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached: int | None = None
    num_preemptions: int = 0
    rank: tuple[float, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Prompt plus output so far, as far as the host knows it."""
        return len(self.request.prompt) + len(self.output)

    @property
    def num_missing(self) -> int:
        """Tokens whose KV is still to be computed, the pending one included."""
        return self.num_tokens + self.num_pending - self.num_computed

    @property
    def num_samples(self) -> int:
        """Tokens to draw in the step that computes the last missing token."""
        return self.request.n if self.fork_pending else 1

    @property
    def seed(self) -> int:
        """The seed of this choice: the request's, plus the choice's index."""
        return self.request.seed + self.index

    def sibling(self, index: int) -> "Sequence":
        """Return another choice that goes on from here; it holds no blocks yet."""
        rank = (*self.rank[:-1], index)
        return Sequence(
            self.request, index, status=self.status, num_cached=self.num_cached, rank=rank
        )

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """Return the ids at positions start .. stop - 1 of prompt and output."""
        prompt, border = self.request.prompt, len(self.request.prompt)
        if stop <= border:
            return prompt[start:stop]
        if start >= border:
            return tuple(self.output[start - border : stop - border])
        return prompt[start:] + tuple(self.output[max(0, start - border) : stop - border])


class Chunk(NamedTuple):
    """A part of one sequence computed in one step: positions start .. start + length - 1.

    Attributes:
        num_samples: tokens drawn after it; 0 while part of the prompt is still missing.
    """

    sequence: Sequence
    start: int
    length: int
    num_samples: int


@dataclass(frozen=True)
class ScheduledStep:
    """The work of one step, decided on the host.

    Attributes:
        chunks: in the order of their rows in the packed batch.
        copies: (source block, target block), executed before the step's KV writes.
        preempted: sequences whose blocks were taken back to make room.
    """

    chunks: tuple[Chunk, ...]
    copies: tuple[tuple[int, int], ...] = ()
    preempted: tuple[Sequence, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed by this step."""
        return sum(chunk.length for chunk in self.chunks)

    @property
    def num_samples(self) -> int:
        """Tokens drawn by this step."""
        return sum(chunk.num_samples for chunk in self.chunks)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of chunks that begin in a prompt."""
        return sum(c.length for c in self.chunks if c.start < len(c.sequence.request.prompt))

    @property
    def needs_reading(self) -> bool:
        """Whether the next step needs its draws on the host: for penalties, grammars and so on."""
        drawing = (c.sequence.request.sampling for c in self.chunks if c.num_samples)
        return any(sampling.reads_output for sampling in drawing)

    def mark_pending(self) -> None:
        """Let the running sequences know that what they draw here has not reached the host."""
        for sequence, _, _, num_samples in self.chunks:
            is_running = sequence.status is Status.RUNNING
            sequence.num_pending = int(is_running and num_samples > 0)


class TokenDelta(NamedTuple):
    """One token a step gave to one sequence, and whether it ended the sequence.

    Attributes:
        row: which of the step's draws it is (draws are numbered in the order of the chunks).
    """

    sequence: Sequence
    token: int
    row: int
    finish_reason: FinishReason | None = None
