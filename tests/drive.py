"""Run `forward` as the engine does: packed chunks, padded shapes, a pool with shuffled blocks."""

from collections.abc import Iterator

import jax
import numpy as np

from paged_jax.config import CacheConfig, ModelConfig
from paged_jax.device.kv_pool import init_pool
from paged_jax.device.step_batch import BatchShape, pack
from paged_jax.host.request import Chunk, Request, Sequence
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.models.params import ModelParams
from paged_jax.models.transformer import forward, logits

BLOCK_SIZE = 4
FAST = {"xla_backend_optimization_level": 0}  # compile sooner; the arithmetic is the same
SHAPE = BatchShape(tokens=48, seqs=4, max_blocks=16, rows=4)  # one program for most tests

_forward = jax.jit(forward, static_argnames="config", donate_argnames="pool", compiler_options=FAST)
_logits = jax.jit(logits, compiler_options=FAST)


def drive(
    config: ModelConfig,
    params: ModelParams,
    texts: list[list[int]],
    *,
    chunk: int | None = None,
    prompt_len: int | None = None,
) -> list[np.ndarray]:
    """Return the logits of every token of each text, [tokens vocab].

    Args:
        texts: their chunks share each step.
        chunk: tokens of a text per step; None is all at once. From `prompt_len` on it is one.
        prompt_len: where each prompt ends (default: at the text's end).
    """
    sequences = make_sequences(texts, prompt_len)
    shape = _shape(sequences)
    pool = init_pool(config, CacheConfig(1 + shape.seqs * shape.max_blocks, BLOCK_SIZE))
    rows: list[list[np.ndarray]] = [[] for _ in texts]
    for chunks in _steps(sequences, chunk or shape.tokens):
        hidden, pool = _forward(params, pool, pack(chunks, shape, BLOCK_SIZE), config=config)
        table, at = np.asarray(_logits(params, hidden)), 0
        for item in chunks:
            rows[item.sequence.index].append(table[at : at + item.length])
            at += item.length
    return [np.concatenate(parts) for parts in rows]


def make_sequences(texts: list[list[int]], prompt_len: int | None = None) -> list[Sequence]:
    """Return a sequence per text whose blocks lie in no order."""
    counts = [-(-len(text) // BLOCK_SIZE) for text in texts]
    blocks = np.random.default_rng(0).permutation(sum(counts)) + 1
    sequences = []
    for index, (text, end) in enumerate(zip(texts, np.cumsum(counts), strict=True)):
        border = prompt_len or len(text)
        request = Request(
            id=str(index),
            prompt=tuple(text[:border]),
            sampling=SamplingParams(),
            seed=0,
            max_tokens=1,
        )
        table = blocks[end - counts[index] : end].tolist()
        sequences.append(Sequence(request, index, output=text[border:], block_table=table))
    return sequences


def _steps(sequences: list[Sequence], length: int) -> Iterator[list[Chunk]]:
    while True:
        chunks = []
        for sequence in sequences:
            start, border = sequence.num_computed, len(sequence.request.prompt)
            stop = min(start + length, border) if start < border else start + 1
            if start < sequence.num_tokens:
                chunks.append(Chunk(sequence, start, stop - start, 1))
                sequence.num_computed = stop
        if not chunks:
            return
        yield chunks


def _shape(sequences: list[Sequence]) -> BatchShape:
    """SHAPE, or what long texts need; some of every axis is padding."""
    total = sum(sequence.num_tokens for sequence in sequences)
    if total < SHAPE.tokens and len(sequences) < SHAPE.seqs:
        return SHAPE
    seqs, blocks = len(sequences) + 1, max(len(s.block_table) for s in sequences) + 1
    return BatchShape(total + 1, seqs, blocks, seqs)
