"""Products with packed integer weights: 8 or 4 bits a value, a scale for each group of inputs.

Values are signed: v in a group of scale s and zero point z stands for (v - z) * s; an absent zero
point is 0. 8 bit is int8 [in, out]. 4 bit is int8 [in / 2, out]: the inputs are cut into runs of
`run_len(group_size)`, and byte r of a run holds row r of the run's first half in its low nibble and
row r of its second half in its high one. So a run is two plain products and nothing is interleaved.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Float, Float32, Int8

MAX_ROWS = 256
MIN_RUN, MAX_RUN = 32, 128
MIN_COLS, MAX_COLS = 16, 64
MIN_ROWS_TILE, MAX_ROWS_TILE = 16, 64  # a tensor core's product has at least 16 rows
PROGRAMS = 264  # two for each multiprocessor of an H100 or H200
MAX_SPLITS = 16
UPPER_BITS = -(1 << 16)  # of a float32: sign, exponent and as much fraction as a bfloat16 has
DTYPES = ("bfloat16", "float16", "float32")


def run_len(group_size: int) -> int:
    """Return how many inputs are packed together: the largest power of two, to 128, in a group."""
    return min(MAX_RUN, group_size & -group_size)


def pack(
    values: Int8[np.ndarray, "inner outer"], *, bits: int, group_size: int
) -> Int8[np.ndarray, "stored outer"]:
    """Lay out signed values as the products here read them; 4-bit groups have an even size."""
    if bits == 8:
        return values
    half, outer = run_len(group_size) // 2, values.shape[1]
    assert half, f"groups of {group_size} cannot be halved"
    runs = values.reshape(-1, 2, half, outer)
    return ((runs[:, 0] & 15) | (runs[:, 1] << 4)).reshape(-1, outer)


def dequantise(
    values: Int8[Array, "stored outer"],
    scales: Float[Array, "groups outer"],
    zeros: Int8[Array, "groups outer"] | None = None,
    *,
    bits: int,
) -> Float32[Array, "inner outer"]:
    """Return the matrix that packed values stand for: the definition."""
    groups, outer = scales.shape
    inner = values.shape[0] * 8 // bits
    if bits == 4:
        runs = values.reshape(-1, run_len(inner // groups) // 2, outer)
        values = jnp.concatenate(_rows(runs, bits), axis=1)
    grouped = values.reshape(groups, inner // groups, outer).astype(jnp.float32)
    if zeros is not None:
        grouped = grouped - zeros.astype(jnp.float32)[:, None, :]
    return (grouped * scales.astype(jnp.float32)[:, None, :]).reshape(inner, outer)


def quant_matmul_reference(
    x: Float[Array, "rows inner"],
    values: Int8[Array, "stored outer"],
    scales: Float[Array, "groups outer"],
    zeros: Int8[Array, "groups outer"] | None = None,
    *,
    bits: int,
) -> Float[Array, "rows outer"]:
    """Multiply by the dequantised matrix, rounded to the type of `x`: the back end "xla"."""
    weight = dequantise(values, scales, zeros, bits=bits).astype(x.dtype)
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else lax.Precision.DEFAULT
    return jnp.matmul(x, weight, precision=precision)


def quant_matmul(
    x: Float[Array, "rows inner"],
    values: Int8[Array, "stored outer"],
    scales: Float[Array, "groups outer"],
    zeros: Int8[Array, "groups outer"] | None = None,
    *,
    bits: int,
    interpret: bool = False,
) -> Float[Array, "rows outer"]:
    """Multiply without ever writing the dequantised matrix: a Triton kernel; sums are float32.

    Raises:
        NotImplementedError: a size or type outside what the kernel does; names it.
    """
    tiling = _tiling(x, values, scales, bits)
    packed = (values, scales) if zeros is None else (values, scales, zeros)
    out = pl.pallas_call(
        partial(_kernel, tiling=tiling, has_zeros=zeros is not None),
        out_shape=jax.ShapeDtypeStruct(
            (tiling.splits * tiling.rows, tiling.outer),
            x.dtype if tiling.splits == 1 else jnp.float32,
        ),
        grid=tiling.grid,
        compiler_params=plt.CompilerParams(num_warps=4, num_stages=3),
        interpret=interpret,
        name=f"quant_matmul_int{bits}",
    )(x, *packed)
    return out.reshape(tiling.splits, *x.shape[:1], -1).sum(0, dtype=jnp.float32).astype(x.dtype)


@dataclass(frozen=True)
class _Tiling:
    """How one product is cut into programs.

    Attributes:
        num_groups: scales of a column.
        num_runs: steps over the inputs, `run` at a time, `splits` programs sharing them.
    """

    bits: int
    rows: int
    outer: int
    row_tile: int
    col_tile: int
    run: int
    num_runs: int
    num_groups: int
    splits: int

    @property
    def grid(self) -> tuple[int, int, int]:
        """Programs: tiles of rows, tiles of columns, splits."""
        return (-(-self.rows // self.row_tile), self.outer // self.col_tile, self.splits)

    @property
    def stored_run(self) -> int:
        """Rows of packed values in a run."""
        return self.run * self.bits // 8


def _tiling(x: Array, values: Array, scales: Array, bits: int) -> _Tiling:
    (rows, inner), (groups, outer) = x.shape, scales.shape
    _refuse(bits not in (4, 8), f"bits must be 4 or 8, not {bits}")
    assert values.shape == (inner * bits // 8, outer), f"{values.shape} does not fit {x.shape}"
    run, col_tile = run_len(inner // groups), min(MAX_COLS, outer & -outer)
    row_tile = min(MAX_ROWS_TILE, max(MIN_ROWS_TILE, pl.next_power_of_2(rows)))
    if rows <= MIN_ROWS_TILE:
        col_tile = min(32, col_tile)
    _refuse(x.dtype.name not in DTYPES, f"activations must be one of {DTYPES}, not {x.dtype}")
    _refuse(not 0 < rows <= MAX_ROWS, f"rows must be between 1 and {MAX_ROWS}, not {rows}")
    _refuse(run < MIN_RUN, f"groups must be a multiple of {MIN_RUN} inputs, not {inner // groups}")
    _refuse(col_tile < MIN_COLS, f"outputs must be a multiple of {MIN_COLS}, not {outer}")
    _refuse(values.size >= 1 << 31, f"a matrix must stay below 2 GiB, not {values.size} bytes")
    programs = -(-rows // row_tile) * (outer // col_tile)
    splits = min(MAX_SPLITS, inner // run, max(1, PROGRAMS // programs))
    return _Tiling(bits, rows, outer, row_tile, col_tile, run, inner // run, groups, splits)


def _refuse(is_outside: bool, limit: str) -> None:
    if is_outside:
        raise NotImplementedError(f"quant_matmul: {limit}")


def _rows(packed: Array, bits: int) -> list[Array]:
    """The parts of a run, in order: itself, or the signed low and high nibbles."""
    if bits == 8:
        return [packed]
    width = 8 * packed.dtype.itemsize
    low = lax.shift_left(packed, jnp.full_like(packed, width - 4))
    return [
        lax.shift_right_arithmetic(low, jnp.full_like(packed, width - 4)),
        lax.shift_right_arithmetic(packed, jnp.full_like(packed, 4)),
    ]


def _terms(left: Array) -> list[Array]:
    """What to multiply on tensor cores: a float32 as three bfloat16 whose sum it is.

    The integers of the weights are exact in bfloat16, so every product is exact.
    """
    if left.dtype != jnp.float32:
        return [left]
    terms = []
    for _ in range(3):
        bits = lax.bitcast_convert_type(left, jnp.int32) & jnp.int32(UPPER_BITS)
        upper = lax.bitcast_convert_type(bits, jnp.float32)
        terms.append(upper.astype(jnp.bfloat16))
        left = left - upper
    return terms


def _kernel(x_ref, values_ref, scales_ref, *refs, tiling: _Tiling, has_zeros: bool):
    """Sum one tile of the product over the runs of one split."""
    zeros_ref, out_ref = refs if has_zeros else (scales_ref, refs[0])
    t = tiling
    rows = pl.program_id(0) * t.row_tile + jnp.arange(t.row_tile, dtype=jnp.int32)
    cols = pl.program_id(1) * t.col_tile + jnp.arange(t.col_tile, dtype=jnp.int32)

    def of_group(ref, run):
        group = lax.div(run * t.num_groups, jnp.int32(t.num_runs))
        return plt.load(ref.at[group, cols])[None, :]

    def scaled(total, run):
        return total * of_group(scales_ref, run).astype(jnp.float32)

    def step(run, total):
        zero = of_group(zeros_ref, run).astype(jnp.int32) if has_zeros else jnp.int32(0)
        product = _product(x_ref, values_ref, zero, rows, cols, run, t)
        return total + (product if t.num_groups == 1 else scaled(product, run))

    per_split = -(-t.num_runs // t.splits)
    first = pl.program_id(2) * per_split
    last = jnp.minimum(first + per_split, t.num_runs)
    total = lax.fori_loop(first, last, step, jnp.zeros((t.row_tile, t.col_tile), jnp.float32))
    total = scaled(total, jnp.int32(0)) if t.num_groups == 1 else total
    # Unclamped on purpose: where rows are masked off, nothing may be stored over a live row.
    target = out_ref.at[(pl.program_id(2) * t.rows + rows)[:, None], cols[None, :]]
    is_live = jnp.broadcast_to(rows[:, None] < t.rows, total.shape)
    plt.store(target, total.astype(out_ref.dtype), mask=is_live)


def _product(x_ref, values_ref, zero, rows, cols, run, t: _Tiling):
    """Multiply a tile's rows by one run of the integers, less their zero points."""
    steps = jnp.arange(t.stored_run, dtype=jnp.int32)
    is_row = jnp.broadcast_to(rows[:, None] < t.rows, (t.row_tile, t.stored_run))
    stored = (run * t.stored_run + steps)[:, None]
    packed = plt.load(values_ref.at[stored, cols[None, :]]).astype(jnp.int32)
    total = jnp.zeros((t.row_tile, t.col_tile), jnp.float32)
    for part, weight in enumerate(_rows(packed, t.bits)):
        inputs = (run * t.run + part * t.stored_run + steps)[None, :]
        left = plt.load(x_ref.at[rows[:, None], inputs], mask=is_row, other=0.0)
        for term in _terms(left):
            total += plt.dot(term, (weight - zero).astype(term.dtype))
    return total
