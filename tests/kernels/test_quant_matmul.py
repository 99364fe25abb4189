"""The quantised product: layouts against plain NumPy, the kernel against float64, its limits."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.quant_matmul import (
    dequantise,
    pack,
    quant_matmul,
    quant_matmul_reference,
    run_len,
)


class Case(NamedTuple):
    bits: int
    rows: int
    inner: int
    outer: int
    group: int
    has_zeros: bool = True


CASES = [
    Case(8, 1, 192, 48, 192, has_zeros=False),
    Case(8, 17, 128, 64, 128),
    Case(8, 3, 256, 32, 64),
    Case(4, 1, 384, 96, 128),
    Case(4, 2, 256, 16, 64, has_zeros=False),
    Case(4, 16, 128, 32, 32),
    Case(4, 33, 512, 64, 512),
    Case(4, 8, 192, 32, 192),
    Case(4, 256, 128, 64, 64),
]
# What one sum of `inner` products is off by, relative to the largest result: rounding the inputs is
# no error here, as the reference sees the rounded ones; rounding the output is.
TOLERANCES = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}


def make_case(case: Case, dtype: str = "float32") -> tuple[tuple, np.ndarray, np.ndarray]:
    """Return the arguments of a product, the float64 matrix and the float64 result."""
    rng, groups = np.random.default_rng(0), case.inner // case.group
    limit = 1 << (case.bits - 1)
    draw = lambda *shape: rng.integers(-limit, limit, shape).astype(np.int8)  # noqa: E731
    values, zeros = draw(case.inner, case.outer), draw(groups, case.outer)
    zeros = zeros if case.has_zeros else np.zeros_like(zeros)
    scales = rng.uniform(0.01, 0.05, zeros.shape).astype(np.float16)
    x = jnp.asarray(rng.normal(size=(case.rows, case.inner)), dtype)
    spread = lambda part: np.repeat(part.astype(np.float64), case.group, axis=0)  # noqa: E731
    dense = (values - spread(zeros)) * spread(scales)
    packed = jnp.asarray(pack(values, bits=case.bits, group_size=case.group))
    zero_points = jnp.asarray(zeros) if case.has_zeros else None
    return (x, packed, jnp.asarray(scales), zero_points), dense, np.float64(x) @ dense


@pytest.mark.parametrize(
    ("group", "expected"), [(128, 128), (64, 64), (32, 32), (4096, 128), (192, 64), (96, 32)]
)
def test_runs_are_powers_of_two_inside_a_group(group, expected):
    assert run_len(group) == expected


def test_low_and_high_nibbles_are_the_halves_of_a_run():
    values = np.arange(-8, 8, dtype=np.int8)[:, None]  # one run of 16
    packed = pack(values, bits=4, group_size=16)
    assert packed.shape == (8, 1)
    assert packed.view(np.uint8)[:, 0].tolist() == [(high << 4) | (high + 8) for high in range(8)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_dequantised_values_are_exact(case):
    (_, *packed), dense, _ = make_case(case)
    assert np.array_equal(np.asarray(dequantise(*packed, bits=case.bits)), dense)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, "bfloat16") for case in CASES]
    + [(case, dtype) for case in CASES[3:5] for dtype in ("float32", "float16")],
    ids=str,
)
def test_the_kernel_equals_float64(case, dtype):
    arguments, _, expected = make_case(case, dtype)
    actual = quant_matmul(*arguments, bits=case.bits, interpret=True)
    assert actual.dtype == dtype
    limit = TOLERANCES[dtype] * np.abs(expected).max()
    np.testing.assert_allclose(np.float64(actual), expected, rtol=0, atol=limit)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reference_equals_float64(case):
    arguments, _, expected = make_case(case)
    actual = quant_matmul_reference(*arguments, bits=case.bits)
    np.testing.assert_allclose(
        np.float64(actual), expected, rtol=0, atol=2e-6 * np.abs(expected).max()
    )


def test_a_row_that_is_not_finite_leaves_the_others_alone():
    (x, *packed), _, expected = make_case(CASES[1])
    x = x.at[3].set(jnp.nan)
    actual = np.asarray(quant_matmul(x, *packed, bits=8, interpret=True))
    assert np.isnan(actual[3]).all()
    others = np.arange(len(actual)) != 3
    np.testing.assert_allclose(actual[others], expected[others], rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("case", "limit"),
    [
        (Case(8, 257, 64, 16, 64), "rows must be between 1 and 256, not 257"),
        (Case(8, 0, 64, 16, 64), "rows must be between 1 and 256, not 0"),
        (Case(4, 1, 64, 16, 16), "groups must be a multiple of 32 inputs, not 16"),
        (Case(8, 1, 64, 24, 64), "outputs must be a multiple of 16, not 24"),
    ],
)
def test_a_size_outside_the_limits_is_refused_by_name(case, limit):
    arguments, _, _ = make_case(case)
    with pytest.raises(NotImplementedError, match=limit):
        quant_matmul(*arguments, bits=case.bits, interpret=True)


def test_other_numbers_of_bits_are_refused_by_name():
    arguments, _, _ = make_case(CASES[0])
    with pytest.raises(NotImplementedError, match="bits must be 4 or 8, not 2"):
        quant_matmul(*arguments, bits=2, interpret=True)


@pytest.mark.skipif(
    jax.__version_info__ >= (0, 11), reason="newer JAX lowers for a GPU only where it is given one"
)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 64])
def test_the_kernel_lowers_for_cuda(rows, bits, dtype):
    arguments, _, _ = make_case(Case(bits, rows, 256, 64, 128), dtype)
    product = jax.jit(lambda *arrays: quant_matmul(*arrays, bits=bits))
    lowered = product.trace(*arguments).lower(lowering_platforms=("cuda",))
    assert f"quant_matmul_int{bits}" in lowered.as_text()
