"""Beam search on the host: which continuations live on, which answers are finished.

It knows no blocks and no device. Candidates, ends, scores and the end of the search are those of
transformers' `generate` with `early_stopping=False`. Source: Wu et al. 2016, arXiv:1609.08144,
section 7, for the length penalty.
"""

from dataclasses import dataclass, field

from paged_jax.host.field_checks import check_number
from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.outputs import Logprob, PositionLogprobs

MAX_BEAMS = 128
Pick = tuple[int, int]  # the beam that goes on, and the token it goes on with


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """How to search; names and defaults are vLLM's. Raises InvalidRequest that names the field.

    Attributes:
        beam_width: beams kept at each step, and answers returned; [1, 128].
        max_tokens: answer length; None fills the context.
        ignore_eos: the model's end-of-sequence ids do not end an answer.
        temperature: without effect: scores are the model's own log-probabilities.
        length_penalty: an answer's score is the sum of its log-probabilities over its length to
            this power; [-10, 10].
    """

    beam_width: int
    max_tokens: int | None = 16
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        check_number("beam_width", self.beam_width, int, 1, MAX_BEAMS, optional=False)
        check_number("length_penalty", self.length_penalty, float, -10, 10, optional=False)


@dataclass(frozen=True)
class Beam:
    """One answer, running or finished.

    Attributes:
        logprob: the sum over its tokens.
        tables: per token its log-probability, then the alternatives'.
        score: what finished answers are ranked by.
        is_ended: an end-of-sequence id was its last token.
    """

    tokens: tuple[int, ...] = ()
    logprob: float = 0.0
    tables: tuple[PositionLogprobs, ...] = ()
    score: float = 0.0
    is_ended: bool = False

    def grown(self, token: int, table: PositionLogprobs) -> "Beam":
        """Return this answer with one more token."""
        chosen: dict[int, Logprob] = {token: table[token]}
        tables = (*self.tables, chosen | table)
        return Beam((*self.tokens, token), self.logprob + table[token].logprob, tables)


@dataclass
class BeamSearch:
    """The search for one prompt.

    Attributes:
        max_tokens: the answer length in force.
        ends: ids that end an answer.
        running: best first.
        finished: best first, at most `width`.
        offers: what may follow each running beam, as far as it is known.
    """

    width: int
    max_tokens: int
    ends: frozenset[int]
    length_penalty: float
    running: list[Beam] = field(default_factory=lambda: [Beam()])
    finished: list[Beam] = field(default_factory=list[Beam])
    offers: dict[int, PositionLogprobs] = field(default_factory=dict[int, PositionLogprobs])

    @property
    def is_complete(self) -> bool:
        """Whether it is known what may follow each running beam."""
        return len(self.offers) >= len(self.running)

    def step(self) -> list[Pick]:
        """Take up the offers; return how the beams go on, nothing if the search is over."""
        grown = [
            (beam.logprob + entry.logprob, -parent, -token)
            for parent, beam in enumerate(self.running)
            for token, entry in self.offers[parent].items()
        ]
        kept = sorted(grown, reverse=True)[: num_candidates(self.width, len(self.ends))]
        picks = [(-parent, -token) for _, parent, token in kept]
        beams = [self.running[parent].grown(token, self.offers[parent]) for parent, token in picks]
        self.offers = {}
        length = len(beams[0].tokens)
        is_last = length >= self.max_tokens
        self._finish(beams[: self.width], is_last=is_last)
        going = [
            (pick, beam)
            for pick, beam in zip(picks, beams, strict=True)
            if pick[1] not in self.ends
        ][: self.width]
        self.running = [beam for _, beam in going]
        if is_last or not going or self._cannot_improve(length):
            return []
        return [pick for pick, _ in going]

    def _finish(self, beams: list[Beam], *, is_last: bool) -> None:
        for beam in beams:
            is_ended = beam.tokens[-1] in self.ends
            if is_ended or is_last:
                score = beam.logprob / len(beam.tokens) ** self.length_penalty
                done = Beam(beam.tokens, beam.logprob, beam.tables, score, is_ended)
                self.finished.append(done)
        self.finished.sort(key=lambda beam: -beam.score)
        del self.finished[self.width :]

    def _cannot_improve(self, length: int) -> bool:
        """Whether the best running beam, ending now, would not be among the finished."""
        if len(self.finished) < self.width:
            return False
        best = self.running[0].logprob / length**self.length_penalty
        return best <= self.finished[-1].score


def num_candidates(width: int, num_ends: int) -> int:
    """Return how many continuations of a beam are looked at, so that enough do not end."""
    return max(2, 1 + num_ends) * width


def check_width(width: int, num_ends: int, max_logprobs: int) -> None:
    """Raise InvalidRequest if the device does not give enough candidates for so many beams."""
    needed = num_candidates(width, num_ends)
    if needed > max_logprobs:
        raise InvalidRequest(
            f"{width} beams need {needed} candidates a step but at most {max_logprobs} are given: "
            f"use fewer, or start with --max-logprobs {needed}",
            "n",
        )
