"""Are the kernels right? Each against float64 in numpy, on hostile inputs, on this very device."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from paged_jax.bench.cases import Accuracy, Case
from paged_jax.bench.implementations import Attention, implementations
from paged_jax.bench.sizes import Sizes
from pallas_kernels import oracle
from pallas_kernels.arg_specs import DECODE, MIXED, AttentionSpec, make_inputs
from pallas_kernels.quant_matmul import dequantise, pack, quant_matmul

# Outputs of order 1: rounded to 8 bits from inputs of 8 bits; sums of float32 in another order.
TOLERANCES = {"bfloat16": 2e-2, "float32": 2e-5}
PRODUCT_ROWS = (1, 2, 4, 8, 16, 64, 256)
PRODUCT_SHAPE = (512, 256)


def numerics(sizes: Sizes) -> Iterator[Case]:
    """Yield every kernel on every named shape, and products of few rows up to many."""
    for name, attention in implementations(interpret=sizes.interpret).items():
        for spec in sizes.specs:
            for dtype in TOLERANCES:
                # XLA's form takes long to compile, and float32 is the exception on a GPU.
                if spec in (DECODE, MIXED) or (name != "xla" and dtype == "bfloat16"):
                    run = partial(_attention_error, attention, spec, dtype)
                    yield Case(f"{name} {spec.name}", dtype, run)
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
