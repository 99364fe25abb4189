"""StepBatch: the one border crossing, from a ScheduledStep to padded arrays.

Packed tokens come first to last in the order of the chunks; decode is a chunk of one token. Padding
tokens follow, belong to no sequence (`query_starts` does not reach them) and write to the null
block.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from paged_jax.device.taps import TapBatch
from paged_jax.host.request import Chunk, Sequence
from paged_jax.pytree import pytree

NOTHING_PENDING: Mapping[Sequence, int] = {}


@pytree
class StepBatch:
    """The tokens of one step.

    Attributes:
        tokens: ids; where one is not known on the host yet, anything.
        drawn_by: for such a token, one more than the row of the step before that drew it; elsewhere
            0.
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
        taps: what is read and changed in the layers; None if nothing is.
    """

    tokens: Int[Array, " tokens"]
    drawn_by: Int[Array, " tokens"]
    positions: Int[Array, " tokens"]
    slots: Int[Array, " tokens"]
    seq_of_token: Int[Array, " tokens"]
    block_tables: Int[Array, "seqs max_blocks"]
    query_starts: Int[Array, " seqs+1"]
    kv_lens: Int[Array, " seqs"]
    prompt_lens: Int[Array, " seqs"]
    sample_at: Int[Array, " rows"]
    taps: TapBatch | None = None


@dataclass(frozen=True)
class BatchShape:
    """The padded sizes of a StepBatch."""

    tokens: int
    seqs: int
    max_blocks: int
    rows: int


def pack(
    chunks: Seq[Chunk],
    shape: BatchShape,
    block_size: int,
    *,
    pending: Mapping[Sequence, int] = NOTHING_PENDING,
) -> StepBatch:
    """Flatten chunks into fresh numpy arrays of `shape`.

    Args:
        pending: the row of the step before that drew a sequence's last token, where that has not
            reached the host.
    Raises:
        AssertionError: a block id or a size is out of range (on the device that would be silent
            corruption).
    """
    batch = empty_batch(shape)
    if not chunks:
        return batch
    starts, lengths, samples, prompts, held = _facts(chunks)
    total, rows, seqs = lengths.sum(), samples.sum(), len(chunks)
    assert total <= shape.tokens and seqs <= shape.seqs and rows <= shape.rows, (shape, total)
    ends = starts + lengths
    _fill_tables(batch.block_tables[:seqs], chunks, held)
    assert np.all(held * block_size >= ends), "a token has no block"
    borders = np.cumsum(lengths)  # where each chunk ends among the packed tokens
    owners = np.repeat(np.arange(seqs, dtype=np.int32), lengths)
    positions = np.arange(total, dtype=np.int32) + np.repeat(ends - borders, lengths)
    blocks = batch.block_tables[owners, positions // block_size]
    batch.tokens[:total], batch.drawn_by[:total] = _tokens(chunks, pending)
    batch.positions[:total], batch.seq_of_token[:total] = positions, owners
    batch.slots[:total] = blocks * block_size + positions % block_size
    batch.kv_lens[:seqs], batch.prompt_lens[:seqs] = ends, prompts
    batch.query_starts[1 : seqs + 1], batch.query_starts[seqs + 1 :] = borders, total
    batch.sample_at[:rows] = np.repeat(borders - 1, samples)
    return batch


def one_query_each(batch: StepBatch) -> StepBatch:
    """Return the same step with a sequence for each token, of which it is the one query.

    The sequences of a prompt's tokens share its blocks and end at different positions.
    """
    num_slots = batch.tokens.shape[0]
    token = jnp.arange(num_slots + 1, dtype=jnp.int32)
    num_tokens = jnp.asarray(batch.query_starts)[-1]
    seq, positions = jnp.asarray(batch.seq_of_token), jnp.asarray(batch.positions)
    return replace(
        batch,
        seq_of_token=token[:-1],
        block_tables=jnp.asarray(batch.block_tables)[seq],
        query_starts=jnp.minimum(token, num_tokens),
        kv_lens=jnp.where(token[:-1] < num_tokens, positions + 1, 0),
        prompt_lens=jnp.asarray(batch.prompt_lens)[seq],
    )


def _facts(chunks: Seq[Chunk]) -> np.ndarray:
    """Start, length, samples, prompt length and number of blocks of each chunk: [5 chunks]."""
    facts = [
        (
            chunk.start,
            chunk.length,
            chunk.num_samples,
            len(chunk.sequence.request.prompt),
            len(chunk.sequence.block_table),
        )
        for chunk in chunks
    ]
    return np.array(facts, np.int32).T


def _fill_tables(tables: Any, chunks: Seq[Chunk], held: np.ndarray) -> None:
    """Write each sequence's blocks into its row."""
    blocks = chain.from_iterable(chunk.sequence.block_table for chunk in chunks)
    flat = np.fromiter(blocks, np.int32, held.sum())
    assert not len(flat) or flat.min() > 0, "a live token would be written to the null block"
    tables[np.arange(tables.shape[1])[None, :] < held[:, None]] = flat


def _tokens(
    chunks: Seq[Chunk], pending: Mapping[Sequence, int]
) -> tuple[list[int], list[int] | int]:
    """The chunks' ids, one after the other, and who draws those that are pending."""
    tokens: list[int] = []
    drawn_by: dict[int, int] = {}
    for sequence, start, length, _ in chunks:
        tokens += sequence.tokens(start, start + length)
        if sequence.num_pending:
            drawn_by[len(tokens)] = pending[sequence] + 1
            tokens.append(0)
    if not drawn_by:
        return tokens, 0
    return tokens, [drawn_by.get(at, 0) for at in range(len(tokens))]


def empty_batch(shape: BatchShape) -> StepBatch:
    """Return an all-padding batch in fresh memory: a dispatched step may still read the last."""

    def zeros(*size: int) -> Any:  # numpy; the fields' types say what jit makes of it
        return np.zeros(size, np.int32)

    return StepBatch(
        tokens=zeros(shape.tokens),
        drawn_by=zeros(shape.tokens),
        positions=zeros(shape.tokens),
        slots=zeros(shape.tokens),
        seq_of_token=zeros(shape.tokens),
        block_tables=zeros(shape.seqs, shape.max_blocks),
        query_starts=zeros(shape.seqs + 1),
        kv_lens=zeros(shape.seqs),
        prompt_lens=zeros(shape.seqs),
        sample_at=zeros(shape.rows),
    )
