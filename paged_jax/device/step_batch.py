"""StepBatch: the one border crossing, from a ScheduledStep to padded arrays.

Packed tokens come first to last in the order of the chunks; decode is a chunk of one token. Padding
tokens follow, belong to no sequence (`query_starts` does not reach them) and write to the null
block.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Array, Int

from paged_jax.host.request import Chunk
from paged_jax.pytree import pytree


@pytree
class StepBatch:
    """The tokens of one step.

    Attributes:
        tokens: ids.
        positions: position of each token in its sequence.
        slots: where each token's key and value go (block * block_size + offset); 0 for padding.
        seq_of_token: row of `block_tables` each token belongs to; 0 for padding.
        block_tables: the blocks of each sequence in order; filled with the null block 0.
        query_starts: tokens [query_starts[i], query_starts[i + 1]) are sequence i's; padding rows
            are empty.
        kv_lens: tokens of the sequence that are in the pool after this step's writes; 0 for
            padding.
        prompt_lens: prompt length of each sequence (length-dependent rotary scaling needs it).
        sample_at: index into `tokens` of each row to be sampled; 0 for padding.
    """

    tokens: Int[Array, " tokens"]
    positions: Int[Array, " tokens"]
    slots: Int[Array, " tokens"]
    seq_of_token: Int[Array, " tokens"]
    block_tables: Int[Array, "seqs max_blocks"]
    query_starts: Int[Array, " seqs+1"]
    kv_lens: Int[Array, " seqs"]
    prompt_lens: Int[Array, " seqs"]
    sample_at: Int[Array, " rows"]


@dataclass(frozen=True)
class BatchShape:
    """The padded sizes of a StepBatch."""

    tokens: int
    seqs: int
    max_blocks: int
    rows: int


def pack(chunks: Seq[Chunk], shape: BatchShape, block_size: int) -> StepBatch:
    """Flatten chunks into fresh numpy arrays of `shape`.

    Raises:
        AssertionError: a block id or a size is out of range (on the device that would be silent
            corruption).
    """
    total, rows = sum(c.length for c in chunks), sum(c.num_samples for c in chunks)
    assert total <= shape.tokens and len(chunks) <= shape.seqs and rows <= shape.rows, (
        shape,
        total,
    )
    batch = empty_batch(shape)
    at = row = 0
    for index, chunk in enumerate(chunks):
        sequence, end = chunk.sequence, chunk.start + chunk.length
        blocks = np.asarray(sequence.block_table, np.int32)
        assert len(blocks) * block_size >= end, "a token has no block"
        assert blocks.min() > 0, "a live token would be written to the null block"
        here = slice(at, at + chunk.length)
        positions = np.arange(chunk.start, end, dtype=np.int32)
        batch.tokens[here] = sequence.tokens(chunk.start, end)
        batch.positions[here] = positions
        batch.slots[here] = blocks[positions // block_size] * block_size + positions % block_size
        batch.seq_of_token[here] = index
        batch.block_tables[index, : len(blocks)] = blocks
        batch.kv_lens[index], batch.prompt_lens[index] = end, len(sequence.request.prompt)
        at += chunk.length
        batch.query_starts[index + 1 :] = at
        batch.sample_at[row : row + chunk.num_samples] = at - 1
        row += chunk.num_samples
    return batch


def empty_batch(shape: BatchShape) -> StepBatch:
    """Return an all-padding batch in fresh memory: a dispatched step may still read the last."""

    def zeros(*size: int) -> Any:  # numpy; the fields' types say what jit makes of it
        return np.zeros(size, np.int32)

    return StepBatch(
        tokens=zeros(shape.tokens),
        positions=zeros(shape.tokens),
        slots=zeros(shape.tokens),
        seq_of_token=zeros(shape.tokens),
        block_tables=zeros(shape.seqs, shape.max_blocks),
        query_starts=zeros(shape.seqs + 1),
        kv_lens=zeros(shape.seqs),
        prompt_lens=zeros(shape.seqs),
        sample_at=zeros(shape.rows),
    )
