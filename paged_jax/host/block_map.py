"""The KV pool at one moment, block by block, for people to look at. It holds no tokens."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TypeVar

from paged_jax.host.request import Sequence
from paged_jax.host.scheduler import Scheduler

MAX_BLOCKS = 4096
MAX_SEQUENCES = 256

T = TypeVar("T")


@dataclass(frozen=True)
class SequenceView:
    """What is told of one sequence.

    Attributes:
        num_cached: prompt tokens that came from the prefix cache.
        num_blocks: blocks it holds, shared ones included.
    """

    request_id: str
    choice: int
    status: str
    num_prompt: int
    num_output: int
    num_computed: int
    num_cached: int
    num_blocks: int
    num_preemptions: int


@dataclass(frozen=True)
class BlockMap:
    """The blocks but for the null block, in order, and the sequences in the order of service.

    Of replicas, those of the first come first, and so on.

    Attributes:
        num_blocks: blocks there are; the lists tell of the first `MAX_BLOCKS`.
        refs: how many sequences hold each block.
        cached: whether the prefix cache can find it.
        owners: the first sequence that holds it, as an index into `sequences`; -1 is none.
        num_evicted: cached blocks that were handed out for something else so far.
    """

    num_blocks: int
    block_size: int
    refs: tuple[int, ...]
    cached: tuple[bool, ...]
    owners: tuple[int, ...]
    sequences: tuple[SequenceView, ...]
    num_evicted: int


def block_map(scheduler: Scheduler) -> BlockMap:
    """Return the pool's state; takes a pass over the blocks shown and the block tables."""
    pool, sequences = scheduler.pool, scheduler.sequences[:MAX_SEQUENCES]
    shown = range(1, min(pool.num_usable, MAX_BLOCKS) + 1)
    owner_of: dict[int, int] = {}
    for index, sequence in enumerate(sequences):
        for block in sequence.block_table:
            owner_of.setdefault(block, index)
    return BlockMap(
        num_blocks=pool.num_usable,
        block_size=scheduler.cache.block_size,
        refs=tuple(map(pool.ref_count, shown)),
        cached=tuple(map(pool.is_published, shown)),
        owners=tuple(owner_of.get(block, -1) for block in shown),
        sequences=tuple(map(_view, sequences)),
        num_evicted=pool.num_evicted,
    )


def joined(maps: Seq[BlockMap]) -> BlockMap:
    """Return several pools as one: their blocks and sequences one after the other.

    Of each pool as many blocks are told of as is its share of `MAX_BLOCKS`.
    """
    share = MAX_BLOCKS // len(maps)
    begin = accumulate((len(each.sequences) for each in maps), initial=0)
    owners = [
        tuple(owner + first if owner >= 0 else -1 for owner in each.owners[:share])
        for each, first in zip(maps, begin, strict=False)
    ]
    return BlockMap(
        num_blocks=sum(each.num_blocks for each in maps),
        block_size=maps[0].block_size,
        refs=_chained(each.refs[:share] for each in maps),
        cached=_chained(each.cached[:share] for each in maps),
        owners=_chained(owners),
        sequences=_chained(each.sequences for each in maps),
        num_evicted=sum(each.num_evicted for each in maps),
    )


def _chained(parts: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    return tuple(chain.from_iterable(parts))


def _view(sequence: Sequence) -> SequenceView:
    return SequenceView(
        request_id=sequence.request.id,
        choice=sequence.index,
        status=sequence.status.value,
        num_prompt=len(sequence.request.prompt),
        num_output=len(sequence.output),
        num_computed=sequence.num_computed,
        num_cached=sequence.num_cached or 0,
        num_blocks=len(sequence.block_table),
        num_preemptions=sequence.num_preemptions,
    )
