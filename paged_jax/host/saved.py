"""The scheduler's part of a snapshot: sequences, and which token's key and value is where.

Keys and values are told by row: each token that a sequence has computed is one row, and a block
that several sequences hold gives its rows once. So the size of blocks is free when they are placed
again. A token whose successor was still being drawn is left out: it is computed once more, and its
seed and position make the draw the same.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from paged_jax.host.placement import Placement
from paged_jax.host.request import Request, Sequence
from paged_jax.host.scheduler import Scheduler

Run = tuple[int, int]  # first row, number of rows


class SnapshotError(ValueError):
    """A snapshot cannot be written, read, or continued here; says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class SavedSequence:
    """One unfinished choice of a request.

    Attributes:
        index: which choice.
        runs: the rows of its computed tokens, in order; none if it was waiting.
    """

    request_id: str
    index: int
    output: tuple[int, ...]
    runs: tuple[Run, ...]
    fork_pending: bool
    num_cached: int | None
    num_preemptions: int

    def rows(self) -> list[int]:
        """Return the row of each computed token."""
        return [row for first, count in self.runs for row in range(first, first + count)]


def save_sequences(scheduler: Scheduler) -> tuple[list[SavedSequence], list[int]]:
    """Return the unfinished sequences, running ones first, and the slot of each row."""
    size, sequences = scheduler.cache.block_size, scheduler.sequences
    fills: dict[int, int] = {}
    for sequence in sequences:
        for block, fill in _fills(sequence, size):
            fills[block] = max(fill, fills.get(block, 0))
    slots, first_rows = list[int](), dict[int, int]()
    for block, fill in fills.items():
        first_rows[block] = len(slots)
        slots += range(block * size, block * size + fill)
    return [_save(sequence, first_rows, size) for sequence in sequences], slots


def _fills(sequence: Sequence, size: int) -> Iterator[tuple[int, int]]:
    """Each block of a sequence that holds tokens to be saved, and how many."""
    num_saved = min(sequence.num_computed, sequence.num_tokens - 1)
    for index in range(-(-num_saved // size)):
        yield sequence.block_table[index], min(size, num_saved - index * size)


def _save(sequence: Sequence, first_rows: dict[int, int], size: int) -> SavedSequence:
    return SavedSequence(
        request_id=sequence.request.id,
        index=sequence.index,
        output=tuple(sequence.output),
        runs=tuple((first_rows[block], fill) for block, fill in _fills(sequence, size)),
        fork_pending=sequence.fork_pending,
        num_cached=sequence.num_cached,
        num_preemptions=sequence.num_preemptions,
    )


def check_sequences(
    saved: Iterable[SavedSequence], requests: dict[str, Request], num_rows: int
) -> None:
    """Raise SnapshotError unless the sequences are those of these requests and their rows exist."""
    seen = set[tuple[str, int]]()
    for each in saved:
        request, key = requests.get(each.request_id), (each.request_id, each.index)
        is_known = request is not None and 0 <= each.index < request.n and key not in seen
        seen.add(key)
        num_tokens = len(request.prompt) + len(each.output) if request else 0
        is_inside = all(0 <= first and 0 < n and first + n <= num_rows for first, n in each.runs)
        if not is_known or not is_inside or sum(n for _, n in each.runs) >= num_tokens:
            raise SnapshotError(
                f"choice {each.index} of request {each.request_id!r} contradicts the rest of the"
                " snapshot: take it again"
            )
    if {request_id for request_id, _ in seen} != requests.keys():
        raise SnapshotError("a request of the snapshot has no sequences: take it again")


def resume_sequences(
    scheduler: Scheduler, saved: Seq[SavedSequence], requests: dict[str, Request]
) -> tuple[list[Sequence], list[tuple[int, int]]]:
    """Let an idle scheduler go on with saved sequences.

    Those that find neither seats nor blocks wait, as after a preemption.

    Args:
        requests: by id, in the order of service.
    Returns:
        the sequences, and each (row, slot) that has to be filled before the next step.
    """
    sequences = [_revive(each, requests[each.request_id]) for each in saved]
    for request_id in requests:
        scheduler.adopt([s for s in sequences if s.request.id == request_id])
    placement = Placement(scheduler.pool, scheduler.cache.block_size)
    for sequence, each in zip(sequences, saved, strict=True):
        rows = each.rows()
        if not rows or not scheduler.has_seats(sequence):
            continue
        table = placement.place(rows)
        if table is not None:
            scheduler.resume(sequence, table, len(rows))
    return sequences, list(placement.writes())


def _revive(saved: SavedSequence, request: Request) -> Sequence:
    return Sequence(
        request,
        saved.index,
        fork_pending=saved.fork_pending,
        output=list(saved.output),
        num_cached=saved.num_cached,
        num_preemptions=saved.num_preemptions,
    )
