"""How fast are the parts? The device's own limits first, then attention and quantised products.

What is measured goes round several pools or matrices in turn, as the layers of a model do, so that
no cache holds them.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paged_jax.bench.arrays import random_array, random_int8, random_matrix, random_pool
from paged_jax.bench.cases import Case, Measurement
from paged_jax.bench.implementations import Attention, kernels
from paged_jax.bench.sizes import Queries, Sizes
from paged_jax.bench.timing import Effort, measure
from pallas_kernels.quant_matmul import quant_matmul

BLOCK_SIZE = 16
MAX_TURNS = 32  # pools or matrices gone round
DTYPE = "bfloat16"
ITEM_BYTES = 2


def limits(sizes: Sizes) -> Iterator[Case]:
    """Yield what the shares are taken of: a large copy and a large product."""
    yield Case("copy", DTYPE, partial(copy, sizes.copy_bytes, sizes.effort))
    product = partial(square_product, sizes.matmul_size, DTYPE, sizes.effort)
    yield Case("matmul", DTYPE, product)


def decode(sizes: Sizes) -> Iterator[Case]:
    """Yield decode attention: one new token a sequence."""
    for name, attention in kernels(interpret=sizes.interpret).items():
        for batch, context in sizes.decode:
            run = partial(_attention, attention, Queries(batch, 1, context), sizes)
            yield Case(f"{name} batch {batch} context {context}", DTYPE, run)


def prefill(sizes: Sizes) -> Iterator[Case]:
    """Yield prefill attention: prompts, and a chunk at the end of a long one."""
    for name, attention in kernels(interpret=sizes.interpret).items():
        for queries in sizes.prefill:
            label = f"{name} {queries.num_seqs} x {queries.query_len} of {queries.context}"
            yield Case(label, DTYPE, partial(_attention, attention, queries, sizes))


def products(sizes: Sizes) -> Iterator[Case]:
    """Yield products with bfloat16, int8 and int4 weights."""
    for rows in sizes.product_rows:
        yield Case(f"bf16 {rows} rows", DTYPE, partial(_plain_product, rows, sizes))
        for bits in (8, 4):
            yield Case(f"int{bits} {rows} rows", DTYPE, partial(_quant_product, bits, rows, sizes))


def compiled(
    function: Callable[..., Any], *arguments: Any, donate: bool = False
) -> tuple[Any, float]:
    """Compile ahead of time, donating the first argument if told to; also the seconds that took."""
    start = time.perf_counter()
    program = jax.jit(function, donate_argnums=(0,) if donate else ()).lower(*arguments).compile()
    return program, time.perf_counter() - start


def copy(num_bytes: int, effort: Effort) -> Measurement:
    """Measure a copy in the device's memory: what attention and few rows are held against.

    In place: on a CPU new memory is mostly the operating system's work.
    """
    x = jnp.ones(num_bytes // 4, jnp.int32)
    moved = 2 * x.nbytes
    program, compile_s = compiled(lambda x: x ^ 1, x, donate=True)
    return Measurement(measure(program, x, effort), moved, 0, compile_s)


def square_product(size: int, dtype: str, effort: Effort) -> Measurement:
    """Measure a product of two [size size] matrices: what many rows are held against."""
    a, b = (random_matrix(seed, (size, size), dtype) for seed in (0, 1))
    program, compile_s = compiled(jnp.matmul, a, b)
    timing = measure(lambda _: program(a, b), a, effort)
    return Measurement(timing, 3 * a.nbytes, 2 * size**3, compile_s)


def _attention(attention: Attention, queries: Queries, sizes: Sizes) -> Measurement:
    q_heads, kv_heads, head_dim = sizes.heads
    tables, starts, kv_lens = sequences(queries)
    shape = (1 + tables.size, BLOCK_SIZE, kv_heads, head_dim)
    pool_bytes = int(np.prod(shape, dtype=np.int64)) * ITEM_BYTES
    make = lambda seed: random_pool(seed, shape, DTYPE)  # noqa: E731
    pools = [(make(2 * turn), make(2 * turn + 1)) for turn in _turns(2 * pool_bytes, sizes)]
    attend = partial(attention, scale=head_dim**-0.5)

    def layers(q: jax.Array, pools: list[tuple[jax.Array, jax.Array]]) -> jax.Array:
        for k_pool, v_pool in pools:
            q = attend(q, k_pool, v_pool, tables, starts, kv_lens)
        return q

    q = random_array(0, (queries.num_seqs * queries.query_len, q_heads, head_dim), DTYPE)
    program, compile_s = compiled(layers, q, pools)
    timing = measure(lambda q: program(q, pools), q, sizes.effort)
    num_bytes = len(pools) * (2 * pool_bytes + 2 * q.nbytes)
    num_flops = len(pools) * 4 * queries.num_pairs * q_heads * head_dim
    return Measurement(timing, num_bytes, num_flops, compile_s)


def sequences(
    queries: Queries, block_size: int = BLOCK_SIZE
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Block tables, query starts and lengths; the blocks lie in random order."""
    max_blocks = queries.context // block_size
    order = np.random.default_rng(0).permutation(queries.num_seqs * max_blocks) + 1
    tables = order.reshape(queries.num_seqs, max_blocks)
    tables[:, : queries.common // block_size] = tables[0, : queries.common // block_size]
    tables = jnp.asarray(tables, jnp.int32)
    starts = jnp.arange(queries.num_seqs + 1, dtype=jnp.int32) * queries.query_len
    return tables, starts, jnp.full(queries.num_seqs, queries.context, jnp.int32)


def _plain_product(rows: int, sizes: Sizes) -> Measurement:
    shape = sizes.product_shape
    matrix_bytes = shape[0] * shape[1] * ITEM_BYTES
    matrices = [random_matrix(turn, shape, DTYPE) for turn in _turns(matrix_bytes, sizes)]
    return _product(jnp.matmul, rows, matrices, sizes)


def _quant_product(bits: int, rows: int, sizes: Sizes) -> Measurement:
    inner, outer = sizes.product_shape
    stored = (inner * bits // 8, outer)
    matrices = [random_int8(turn, stored) for turn in _turns(stored[0] * outer, sizes)]
    scales = jnp.ones((1 if bits == 8 else inner // 128, outer), DTYPE)
    multiply = partial(quant_matmul, scales=scales, bits=bits, interpret=sizes.interpret)
    return _product(multiply, rows, matrices, sizes)


def _product(
    multiply: Callable[..., jax.Array], rows: int, matrices: list[jax.Array], sizes: Sizes
) -> Measurement:
    inner, outer = sizes.product_shape
    x = random_array(0, (rows, inner), DTYPE)
    program, compile_s = compiled(lambda x, ws: [multiply(x, w) for w in ws], x, matrices)
    timing = measure(lambda _: program(x, matrices), [x], sizes.effort)
    moved = sum(w.nbytes + x.nbytes + rows * outer * ITEM_BYTES for w in matrices)
    return Measurement(timing, moved, len(matrices) * 2 * rows * inner * outer, compile_s)


def _turns(num_bytes: int, sizes: Sizes) -> range:
    return range(min(MAX_TURNS, -(-sizes.cold_bytes // num_bytes)))
