"""What `bench kernels` measures: cases by part and back end, on the device there is.

Attention goes round several pools in turn, as the layers of a model do, so that no cache holds
them; bfloat16 pools on a CPU are uint16, as in the engine.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np

from paged_jax.bench.arrays import random_array, random_pool
from paged_jax.bench.cases import Case, Measurement
from paged_jax.bench.sizes import Queries
from paged_jax.bench.speed import compiled, copy, sequences, square_product
from paged_jax.bench.timing import Effort, measure
from paged_jax.device import platform
from paged_jax.device.attention import AttentionBackend, paged_attention, write_kv
from paged_jax.device.cpu import kernels, matmul
from paged_jax.device.sampling import sample
from paged_jax.device.sampling_rows import RowShape, pack_rows
from pallas_kernels import reference

BLOCK_SIZE = 16
BIASES = 8
MAX_TURNS = 8


@dataclass(frozen=True)
class Scale:
    """How large everything is.

    Attributes:
        heads: of queries and of keys, and the size of one.
        products: inner and outer sizes of the matrices.
        common: decode of sequences that share a prefix.
        cold_bytes: attention goes round pools of this size in all.
    """

    copy_bytes: int = 256 << 20
    matmul_size: int = 2048
    heads: tuple[int, int, int] = (9, 3, 64)
    decode: tuple[tuple[int, int], ...] = ((1, 1024), (8, 1024), (64, 256), (64, 1024))
    common: tuple[Queries, ...] = (Queries(32, 1, 1072, common=1024),)
    prefill: tuple[Queries, ...] = (
        Queries(1, 512, 512),
        Queries(1, 512, 2048),
        Queries(4, 128, 128),
    )
    products: tuple[tuple[int, int], ...] = ((576, 960), (576, 3072), (1536, 576), (576, 49152))
    rows: tuple[int, ...] = (1, 8, 64, 512)
    vocab: int = 49_152
    cold_bytes: int = 128 << 20
    effort: Effort = field(default_factory=Effort)


QUICK = Scale(
    copy_bytes=1 << 16, matmul_size=32, heads=(4, 2, 16), decode=((2, 32),),
    common=(Queries(2, 1, 32, common=16),), prefill=(Queries(1, 16, 32),),
    products=((32, 64),), rows=(2,), vocab=256, cold_bytes=1,
    effort=Effort(warm_up=1, groups=2, calls=1),
)  # fmt: skip


def measure_kernels(only: str = "", *, is_quick: bool = False) -> Iterator[dict]:
    """Yield a record for every case whose name contains `only`; the limits are always measured.

    A case that fails has an "error" and does not end the run.
    """
    scale = QUICK if is_quick else Scale()
    found: dict[str, dict] = {}
    for case in (
        *limits(scale),
        *attention(scale),
        *writes(scale),
        *products(scale),
        *draws(scale),
    ):
        if only in case.name or case.name.startswith("limit"):
            found[case.name] = _record(case, found)
            yield found[case.name]


def limits(scale: Scale) -> Iterator[Case]:
    """Yield what the shares are taken of."""
    yield Case("limit copy", "int32", partial(copy, scale.copy_bytes, scale.effort))
    product = partial(square_product, scale.matmul_size, "float32", scale.effort)
    yield Case("limit product float32", "float32", product)


def attention(scale: Scale) -> Iterator[Case]:
    """Yield attention of decode and prefill steps, in both dtypes, by every usable back end."""
    shapes = [(f"decode {b} x {c}", Queries(b, 1, c)) for b, c in scale.decode]
    shapes += [(f"decode {q.num_seqs} x {q.context}, {q.common} common", q) for q in scale.common]
    shapes += [(f"prefill {q.num_seqs} x {q.query_len} of {q.context}", q) for q in scale.prefill]
    for backend in usable_backends():
        for dtype in ("float32", "bfloat16"):
            for label, queries in shapes:
                run = partial(_attention, backend, queries, dtype, scale)
                yield Case(f"attention {backend} {label} {dtype}", dtype, run)


def usable_backends() -> list[AttentionBackend]:
    """Return the back ends of attention that run on this device."""
    names = [name for name in get_args(AttentionBackend) if name != "auto"]
    unusable = set() if platform.is_nvidia() else {"triton", "mosaic"}
    if not (platform.target() == "cpu" and kernels.are_usable()):
        unusable.add("cpu")
    return [name for name in names if name not in unusable]


def writes(scale: Scale) -> Iterator[Case]:
    """Yield the write of keys and values, as the engine picks it and by XLA."""
    for name, write in (("auto", write_kv), ("xla", reference.write_kv)):
        for rows in scale.rows:
            run = partial(_write, write, rows, scale)
            yield Case(f"write_kv {name} {rows} tokens bfloat16", "bfloat16", run)


def products(scale: Scale) -> Iterator[Case]:
    """Yield products with the model's matrices, by XLA and with packed weights."""
    is_packed = platform.target() == "cpu" and kernels.are_usable()
    for shape in scale.products:
        for rows in scale.rows:
            for dtype in ("float32", "bfloat16"):
                label = f"{rows} x {shape[0]} x {shape[1]} {dtype}"
                yield Case(f"product xla {label}", dtype, partial(_product, rows, shape, dtype))
                if is_packed:
                    run = partial(_packed_product, rows, shape, dtype)
                    yield Case(f"product cpu {label}", dtype, run)


def draws(scale: Scale) -> Iterator[Case]:
    """Yield the sampler with neutral settings."""
    for rows in scale.rows:
        if rows <= 64:
            yield Case(f"sampler {rows} rows", "float32", partial(_sample, rows, scale))


def _record(case: Case, found: dict[str, dict]) -> dict:
    base = {"case": case.name, "dtype": case.dtype}
    try:
        made = case.run()
    except Exception as error:  # one case that fails must not cost all others
        return {**base, "error": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
    assert isinstance(made, Measurement), "no case here checks accuracy"
    seconds = made.timing.median_s
    record = {
        **base, "median_s": seconds, "p90_s": made.timing.p90_s, "num_bytes": made.num_bytes,
        "num_flops": made.num_flops, "bytes_per_s": made.num_bytes / seconds,
        "flops_per_s": made.num_flops / seconds, "compile_s": made.compile_s,
    }  # fmt: skip
    return {**record, "share_of_limit": _share(record, found)}


def _share(record: dict, found: dict[str, dict]) -> float | None:
    """Return the least time that memory and arithmetic allow, over the time it took."""
    copy, square = found.get("limit copy"), found.get("limit product float32")
    if copy is None or square is None or "error" in copy or "error" in square:
        return None
    floor_s = max(
        record["num_bytes"] / copy["bytes_per_s"], record["num_flops"] / square["flops_per_s"]
    )
    return floor_s / record["median_s"]


def _pool(seed: int, shape: tuple[int, int, int, int], dtype: str) -> jax.Array:
    """Return keys or values, as the engine keeps them on this device."""
    pool = random_pool(seed, shape, dtype)
    is_bits = dtype == "bfloat16" and platform.target() == "cpu"
    return jax.lax.bitcast_convert_type(pool, jnp.uint16) if is_bits else pool


def decode_seconds(block_size: int, *, is_quick: bool = False) -> float:
    """Return the seconds of one layer's decode attention, 64 sequences of 256 tokens, by the back
    end and in the dtype the engine picks here.
    """
    scale = QUICK if is_quick else Scale()
    made = _attention(
        "auto", Queries(64, 1, 256), "bfloat16", scale, block_size=block_size, turns=MAX_TURNS
    )
    return made.timing.median_s / MAX_TURNS


def _attention(
    backend: AttentionBackend,
    queries: Queries,
    dtype: str,
    scale: Scale,
    *,
    block_size: int = BLOCK_SIZE,
    turns: int | None = None,
) -> Measurement:
    q_heads, kv_heads, head_dim = scale.heads
    tables, starts, kv_lens = sequences(queries, block_size)
    shape = (1 + tables.size, block_size, kv_heads, head_dim)
    pool_bytes = int(np.prod(shape)) * jnp.dtype(dtype).itemsize
    turns = turns or min(MAX_TURNS, -(-scale.cold_bytes // (2 * pool_bytes)))
    pools = [(_pool(2 * t, shape, dtype), _pool(2 * t + 1, shape, dtype)) for t in range(turns)]
    attend = partial(paged_attention, scale=head_dim**-0.5, backend=backend)

    def layers(q: jax.Array, pools: list[tuple[jax.Array, jax.Array]]) -> jax.Array:
        for k_pool, v_pool in pools:
            q = attend(q, k_pool, v_pool, tables, starts, kv_lens)
        return q

    q = random_array(0, (queries.num_seqs * queries.query_len, q_heads, head_dim), dtype)
    program, compile_s = compiled(layers, q, pools)
    timing = measure(lambda q: program(q, pools), q, scale.effort)
    num_flops = turns * 4 * queries.num_pairs * q_heads * head_dim
    read_bytes = 2 * pool_bytes * np.unique(tables).size // shape[0]
    return Measurement(timing, turns * (read_bytes + 2 * q.nbytes), num_flops, compile_s)


def _write(write: Callable[..., tuple], rows: int, scale: Scale) -> Measurement:
    _, kv_heads, head_dim = scale.heads
    shape = (1 + 4 * rows, BLOCK_SIZE, kv_heads, head_dim)
    new = random_array(2, (rows, kv_heads, head_dim), "bfloat16")
    slots = jnp.asarray(np.random.default_rng(0).permutation(4 * rows)[:rows] + 1, jnp.int32)
    pools = (_pool(0, shape, "bfloat16"), _pool(1, shape, "bfloat16"))
    program, _ = compiled(lambda pools: write(*pools, new, new, slots), pools, donate=True)
    return Measurement(measure(program, pools, scale.effort), 4 * new.nbytes, 0, 0.0)


def _product(rows: int, shape: tuple[int, int], dtype: str) -> Measurement:
    x, w = random_array(0, (rows, shape[0]), dtype), random_array(1, shape, dtype)
    program, compile_s = compiled(jnp.matmul, x, w)
    timing = measure(lambda _: program(x, w), x, Effort())
    return Measurement(timing, *_product_work(rows, shape, dtype), compile_s)


def _packed_product(rows: int, shape: tuple[int, int], dtype: str) -> Measurement:
    x = random_array(0, (rows, shape[0]), "float32")
    packed = matmul.pack(np.asarray(random_array(1, shape, dtype)))
    program, compile_s = compiled(lambda x, w: matmul.multiply(x, [w]), x, packed)
    timing = measure(lambda _: program(x, packed), [x], Effort())
    return Measurement(timing, *_product_work(rows, shape, dtype), compile_s)


def _product_work(rows: int, shape: tuple[int, int], dtype: str) -> tuple[int, int]:
    """Return the bytes and operations of a product: the matrix once, and rows in and out."""
    inner, outer = shape
    size = jnp.dtype(dtype).itemsize
    return size * (inner * outer + rows * (inner + outer)), 2 * rows * inner * outer


def _sample(rows: int, scale: Scale) -> Measurement:
    logits = random_array(0, (rows, scale.vocab), "float32")
    neutral = pack_rows([], RowShape(rows, 1024, BIASES))
    draw = partial(sample, max_logprobs=0, vocab_limit=scale.vocab)
    program, compile_s = compiled(lambda logits, neutral: draw(logits, neutral).tokens, logits,
        neutral)  # fmt: skip
    timing = measure(lambda _: program(logits, neutral), logits, scale.effort)
    return Measurement(timing, logits.nbytes, 0, compile_s)
