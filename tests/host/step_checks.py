"""What must hold of every step the scheduler decides, and what is worth having seen in one."""

from collections.abc import Sequence as Seq

from shadow_pool import BLOCK_SIZE

from paged_jax.host.request import Chunk, ScheduledStep, Sequence, Status, TokenDelta
from paged_jax.host.scheduler import Scheduler


def check_step(step: ScheduledStep, scheduler: Scheduler) -> None:
    """It keeps its limits, and computes the next tokens of each sequence once."""
    assert step.num_tokens <= scheduler.config.max_tokens_per_step
    assert step.num_samples <= scheduler.config.max_seqs
    sequences = [chunk.sequence for chunk in step.chunks]
    assert len(set(sequences)) == len(sequences), "a sequence has two chunks"
    assert not set(sequences) & set(step.preempted), "a preempted sequence is computed"
    targets = [target for _, target in step.copies]
    assert len(set(targets)) == len(targets) and 0 not in targets
    for chunk in step.chunks:
        assert chunk.start + chunk.length == chunk.sequence.num_computed
        is_last = chunk.sequence.num_missing == 0
        assert chunk.num_samples == (chunk.sequence.num_samples if is_last else 0)


def check_admission(step: ScheduledStep, waiting: Seq[Sequence], known: Seq[Sequence]) -> None:
    """Strict order, and nobody else is still about to compute a block they might share.

    Args:
        waiting: the sequences that waited before the step. known: all there ever were.
    """
    admitted = [chunk.sequence for chunk in step.chunks if chunk.sequence in waiting]
    if not admitted:
        return
    assert not step.preempted, "admitted while blocks were short"
    ranks = [sequence.rank for sequence in admitted]
    left = [seq.rank for seq in known if seq.status is Status.WAITING]
    assert sorted(ranks) == ranks and all(ranks[-1] < rank for rank in left)
    running = [seq for seq in known if seq.status is Status.RUNNING]
    others = [seq for seq in running if seq is not admitted[-1]]
    assert not any(seq.num_missing > seq.num_pending for seq in others)


def check_deltas(deltas: Seq[TokenDelta], drawn: Seq[Seq[int]]) -> None:
    """Each tells of the token its row drew."""
    flat = [token for tokens in drawn for token in tokens]
    for delta in deltas:
        assert delta.token == flat[delta.row] == delta.sequence.output[-1]
        assert delta.finish_reason is delta.sequence.finish_reason


def count_events(
    step: ScheduledStep, scheduler: Scheduler, waiting: Seq[Sequence], deltas: Seq[TokenDelta]
) -> dict[str, int]:
    """Return how often each thing that random runs are to show has happened."""
    resumed = [c for c in step.chunks if c.sequence in waiting and c.sequence.num_preemptions]
    return {
        "forks": sum(delta.sequence.index > 0 for delta in deltas),
        "copies": len(step.copies),
        "preemptions": len(step.preempted),
        "preempted choices": sum(sequence.index > 0 for sequence in step.preempted),
        "hits inside a block": sum((s.num_cached or 0) % BLOCK_SIZE > 0 for s in waiting),
        "cache hits": sum(bool(seq.num_cached) for seq in waiting),
        "resumed on cached blocks": sum(chunk.start > 0 for chunk in resumed),
        "shared when filled": sum(_is_shared_when_filled(c, scheduler) for c in step.chunks),
    }


def _is_shared_when_filled(chunk: Chunk, scheduler: Scheduler) -> bool:
    first, last = chunk.start // BLOCK_SIZE, (chunk.start + chunk.length) // BLOCK_SIZE
    filled = chunk.sequence.block_table[first:last]
    return any(scheduler.pool.ref_count(block) > 1 for block in filled)
