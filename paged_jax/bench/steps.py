"""How fast are whole steps? Models of well-known shapes with random weights, against the roofline.

The floor of a step is the time that a copy would take to move its weights and its live keys and
values, or that a large product would take for its arithmetic, whichever is longer.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import numpy as np

from paged_jax.bench.arrays import random_params
from paged_jax.bench.cases import Case, Measurement
from paged_jax.bench.models import num_layer_weights
from paged_jax.bench.sizes import Queries, Sizes
from paged_jax.bench.timing import Effort, measure
from paged_jax.compiled.step import StepInput, engine_step
from paged_jax.config import CacheConfig, ModelConfig
from paged_jax.device.kv_pool import KVPool, block_bytes, init_pool
from paged_jax.device.sampling_rows import RowShape, pack_rows
from paged_jax.device.step_batch import BatchShape, StepBatch, empty_batch
from paged_jax.models.params import ModelParams

BLOCK_SIZE = 16
BIASES = 8
NO_GRAPHS: dict[str, str | bool] = {"xla_gpu_enable_command_buffer": ""}


@dataclass(frozen=True)
class Step:
    """A step of one model: every sequence has as many new tokens, and draws one."""

    config: ModelConfig
    queries: Queries

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, the null block included."""
        return 1 + self.queries.num_seqs * -(-self.queries.context // BLOCK_SIZE)

    @property
    def cache(self) -> CacheConfig:
        """The pool."""
        return CacheConfig(self.num_blocks, BLOCK_SIZE)

    @property
    def num_tokens(self) -> int:
        """New tokens of all sequences."""
        return self.queries.num_seqs * self.queries.query_len


def steps(sizes: Sizes) -> Iterator[Case]:
    """Yield decode steps by batch and a prefill step of every model, drawing included."""
    for name, config in sizes.models.items():
        params = cache(partial(random_params, config))
        for batch in sizes.batches:
            step = Step(config, Queries(batch, 1, sizes.step_context))
            run = partial(_measure, step, params, {}, sizes.effort)
            yield Case(f"{name} decode batch {batch}", config.dtype, run)
        step = Step(config, Queries(1, sizes.prefill_tokens, sizes.prefill_tokens))
        run = partial(_measure, step, params, {}, sizes.effort)
        yield Case(f"{name} prefill {step.num_tokens}", config.dtype, run)


def steps_without_graphs(sizes: Sizes) -> Iterator[Case]:
    """Yield the first model's decode steps once more, each kernel started by the host."""
    name, config = next(iter(sizes.models.items()))
    params = cache(partial(random_params, config))
    for batch in sizes.batches:
        step = Step(config, Queries(batch, 1, sizes.step_context))
        run = partial(_measure, step, params, NO_GRAPHS, sizes.effort)
        yield Case(f"{name} decode batch {batch}, no graphs", config.dtype, run)


def _measure(
    step: Step,
    make_params: Callable[[], ModelParams],
    options: dict[str, str | bool],
    effort: Effort,
) -> Measurement:
    params, config = make_params(), step.config
    pool = init_pool(config, step.cache)
    rows = pack_rows([], RowShape(step.queries.num_seqs, step.queries.context, BIASES))
    inputs = StepInput(batch=_batch(step), rows=rows)
    start = time.perf_counter()
    jitted = jax.jit(partial(engine_step, config=config), donate_argnames=("pool",))
    program = jitted.lower(params, pool, inputs).compile(compiler_options=options)
    compile_s = time.perf_counter() - start

    def call(pool: KVPool) -> KVPool:
        return program(params, pool, inputs)[1]

    timing = measure(call, pool, effort)
    return Measurement(timing, step_bytes(step, params), step_flops(step), compile_s)


def _batch(step: Step) -> StepBatch:
    """Every sequence in blocks of its own, in random order."""
    rng, queries = np.random.default_rng(0), step.queries
    order = rng.permutation(step.num_blocks - 1).astype(np.int32) + 1
    tables = order.reshape(queries.num_seqs, -1)
    empty: Any = empty_batch(
        BatchShape(step.num_tokens, queries.num_seqs, tables.shape[1], queries.num_seqs)
    )
    starts = np.arange(queries.num_seqs + 1, dtype=np.int32) * queries.query_len
    seq = np.repeat(np.arange(queries.num_seqs, dtype=np.int32), queries.query_len)
    first = queries.context - queries.query_len
    new = np.arange(first, queries.context, dtype=np.int32)
    positions = np.tile(new, queries.num_seqs)
    return empty.replace(
        tokens=rng.integers(0, step.config.vocab_size, step.num_tokens, dtype=np.int32),
        positions=positions,
        slots=tables[seq, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE,
        seq_of_token=seq,
        block_tables=tables,
        query_starts=starts,
        kv_lens=np.full(queries.num_seqs, queries.context, np.int32),
        prompt_lens=np.full(queries.num_seqs, queries.context, np.int32),
        sample_at=starts[1:] - 1,
    )


def step_bytes(step: Step, params: ModelParams) -> int:
    """Return the bytes of all weights but the rows of the embedding that are not looked up, and of
    the live KV blocks; `params` may be abstract.
    """
    size_of = lambda tree: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))  # noqa: E731
    weights = size_of(params)
    if params.unembed is not None:
        weights -= size_of(params.embed)
    return weights + (step.num_blocks - 1) * block_bytes(step.config, step.cache)


def step_flops(step: Step) -> int:
    """Return the floating point operations of a step."""
    config = step.config
    products = 2 * step.num_tokens * num_layer_weights(config)
    head = 2 * step.queries.num_seqs * config.embed_dim * config.vocab_size
    pair = 4 * config.num_q_heads * config.head_dim * config.num_layers
    return products + head + pair * step.queries.num_pairs
