"""Are the kernels right? Each against float64 in numpy, on hostile inputs, on this very device."""

from collections.abc import Iterator
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np

from paged_jax.bench.cases import Accuracy, Case
from paged_jax.bench.implementations import Attention, implementations
from paged_jax.bench.sizes import Sizes
from paged_jax.device.kv_write import LARGEST
from pallas_kernels import oracle
from pallas_kernels.arg_specs import DECODE, MIXED, AttentionSpec, make_inputs
from pallas_kernels.quant_matmul import dequantise, pack, quant_matmul

# Outputs of order 1: rounded to 8 bits from inputs of 8 bits; sums of float32 in another order.
ONE_BYTE = ("int8", "float8_e4m3fn")
TOLERANCES = {"bfloat16": 2e-2, "float32": 2e-5}
BOTH = (DECODE, MIXED)
PRODUCT_ROWS = (1, 2, 4, 8, 16, 64, 256)
PRODUCT_SHAPE = (512, 256)


def numerics(sizes: Sizes) -> Iterator[Case]:
    """Yield every kernel on every named shape, and products of few rows up to many."""
    for name, attention in implementations(interpret=sizes.interpret).items():
        for spec in sizes.specs:
            for dtype in TOLERANCES:
                # XLA's form takes long to compile, and float32 is the exception on a GPU.
                if spec in BOTH or (name != "xla" and dtype == "bfloat16"):
                    run = partial(_attention_error, attention, spec, dtype)
                    yield Case(f"{name} {spec.name}", dtype, run)
        for pool_dtype, spec in product(ONE_BYTE, sizes.specs[:1] if sizes.interpret else BOTH):
            run = partial(_one_byte_error, attention, spec, pool_dtype)
            yield Case(f"{name} {spec.name} of {pool_dtype}", "bfloat16", run)
    yield from _products(sizes)


def _products(sizes: Sizes) -> Iterator[Case]:
    rows = PRODUCT_ROWS[:1] if sizes.interpret else PRODUCT_ROWS
    for bits in (8, 4):
        for num_rows in rows:
            run = partial(_product_error, bits, num_rows, sizes.interpret)
            yield Case(f"int{bits} product {num_rows} rows", "bfloat16", run)


def _attention_error(attention: Attention, spec: AttentionSpec, dtype: str) -> Accuracy:
    inputs = make_inputs(spec, seed=0)
    round_to = lambda array: jnp.asarray(array).astype(dtype)  # noqa: E731
    q, k, v = map(round_to, inputs[:3])
    rule = {"scale": spec.scale, "window": spec.window, "softcap": spec.softcap}
    got = jax.jit(partial(attention, **rule))(q, k, v, *map(jnp.asarray, inputs[3:]))
    wide = lambda array: np.asarray(array, np.float64)  # noqa: E731
    rounded = inputs._replace(q=wide(q), k_pool=wide(k), v_pool=wide(v))
    errors = np.abs(np.asarray(got, np.float64) - oracle.attention(rounded, spec))
    return Accuracy(float(errors.max(initial=0.0)), TOLERANCES[dtype])


def _one_byte_error(attention: Attention, spec: AttentionSpec, pool_dtype: str) -> Accuracy:
    inputs = make_inputs(spec, seed=0)
    q = jnp.asarray(inputs.q, jnp.bfloat16)
    one_byte = [_one_byte(pool, pool_dtype) for pool in inputs[1:3]]
    (k, k_scales), (v, v_scales) = one_byte
    scales = {"k_scales": k_scales, "v_scales": v_scales}
    rule = {"scale": spec.scale, "window": spec.window, "softcap": spec.softcap}
    call = jax.jit(partial(attention, **rule))
    got = call(q, k, v, *map(jnp.asarray, inputs[3:]), **scales)
    k, v = (np.asarray(x, np.float64) * np.asarray(s)[..., None] for x, s in one_byte)
    wide = inputs._replace(q=np.asarray(q, np.float64), k_pool=k, v_pool=v)
    errors = np.abs(np.asarray(got, np.float64) - oracle.attention(wide, spec))
    return Accuracy(float(errors.max(initial=0.0)), TOLERANCES["bfloat16"])


def _one_byte(pool: np.ndarray, dtype: str) -> tuple[jax.Array, jax.Array]:
    """Stored numbers and their scales, which are NaN wherever no token lives."""
    scales = np.abs(pool).max(axis=-1) / LARGEST[dtype]
    values = np.nan_to_num(pool / scales[..., None])
    values = np.round(values) if dtype == "int8" else values
    return jnp.asarray(values.astype(np.float32)).astype(dtype), jnp.asarray(scales)


def _product_error(bits: int, rows: int, interpret: bool) -> Accuracy:
    rng, (inner, outer) = np.random.default_rng(0), PRODUCT_SHAPE
    group = inner if bits == 8 else 128
    most = (1 << (bits - 1)) - 1
    values = rng.integers(-most, most + 1, (inner, outer)).astype(np.int8)
    packed = jnp.asarray(pack(values, bits=bits, group_size=group))
    scales = jnp.asarray(rng.uniform(0.5, 1.5, (inner // group, outer)) / most, jnp.bfloat16)
    x = jnp.asarray(rng.normal(size=(rows, inner)) / np.sqrt(inner), jnp.bfloat16)
    got = jax.jit(partial(quant_matmul, bits=bits, interpret=interpret))(x, packed, scales)
    weight = np.asarray(dequantise(packed, scales, bits=bits), np.float64)
    errors = np.abs(np.asarray(got, np.float64) - np.asarray(x, np.float64) @ weight)
    return Accuracy(float(errors.max()), TOLERANCES["bfloat16"])
