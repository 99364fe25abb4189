"""Beam search in the engine: from a step's candidates to the next step's beams, and the answers."""

from paged_jax.engine.answers import Answer, LogprobTables
from paged_jax.host.beams import Beam, BeamSearch, num_candidates
from paged_jax.host.request import FinishReason, Request, Sequence, Status, TokenDelta
from paged_jax.host.scheduler import Scheduler
from paged_jax.outputs import ChoiceDelta


class BeamSearches:
    """The searches of the live requests that ask for beams."""

    def __init__(self, vocab: int):
        self._vocab = vocab  # ids from here on are never drawn
        self._searches: dict[str, BeamSearch] = {}

    def add(self, request: Request) -> None:
        """Begin the search of a request, if it asks for one."""
        sampling = request.sampling
        if sampling.beams is not None:
            ends = frozenset[int]() if sampling.ignore_eos else frozenset(request.eos_ids)
            penalty = sampling.beams.length_penalty
            self._searches[request.id] = BeamSearch(request.n, request.max_tokens, ends, penalty)

    def drop(self, request_id: str) -> None:
        """Forget an ended request."""
        self._searches.pop(request_id, None)

    def offer(self, delta: TokenDelta, tables: LogprobTables | None) -> bool:
        """Note what may follow a beam; return whether it is one."""
        search = self._searches.get(delta.sequence.request.id)
        if search is None or tables is None:
            return False
        wanted = delta.sequence.request.sampling.logprobs or 0
        count = max(num_candidates(search.width, len(search.ends)), wanted)
        table = tables.position(delta.row, count)
        known = {token: entry for token, entry in table.items() if token < self._vocab}
        search.offers[delta.sequence.index] = known
        return True

    def advance(self, answer: Answer, scheduler: Scheduler) -> list[ChoiceDelta]:
        """Go on once all beams have been computed; return the answers when the search is over."""
        request, search = answer.request, self._searches[answer.request.id]
        live = scheduler.live(request.id)
        is_ready = all(sequence.status is Status.RUNNING for sequence in live)
        if not (live and is_ready and search.is_complete):
            return []
        picks = search.step()
        if picks:
            scheduler.branch(request.id, picks)
            return []
        for sequence in live:
            scheduler.finish(sequence, FinishReason.STOP)
        beams = search.finished + [Beam()] * (search.width - len(search.finished))
        return [_told(answer, live[0], index, beam) for index, beam in enumerate(beams)]


def _told(answer: Answer, sequence: Sequence, index: int, beam: Beam) -> ChoiceDelta:
    """A finished beam as a choice."""
    reason = FinishReason.STOP if beam.is_ended else FinishReason.LENGTH
    answer.finish_reasons[index] = reason.value
    text, last = "", len(beam.tokens) - 1
    for at, token in enumerate(beam.tokens):
        delta = TokenDelta(sequence, token, 0, reason if at == last else None)
        text += answer.choice(index).absorb(delta)[0]
    return ChoiceDelta(index, text, beam.tokens, beam.tables, reason.value)
