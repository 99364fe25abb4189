"""Products with packed matrices against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paged_jax.device.cpu.matmul import DTYPES, PackedMatrix, multiply, multiply_gated, pack

pytestmark = pytest.mark.cpu_kernels

ROWS = (*range(1, 21), 63, 64, 65, 127, 512)
SHAPES = ((64, 96), (33, 45), (1, 1))
MAX_ERROR = 2e-6  # of the sum of the products' absolute values


def make_matrix(
    rng: np.random.Generator, inner: int, outer: int, dtype: str
) -> tuple[PackedMatrix, np.ndarray]:
    """A matrix, packed and as float64."""
    if dtype == "int8":
        values = rng.integers(-127, 128, (inner, outer), np.int8)
        scales = rng.random(outer, np.float32)
        return pack(values, scales), values.astype(np.float64) * scales
    values = rng.standard_normal((inner, outer), np.float32).astype(jnp.dtype(dtype))
    return pack(values), values.astype(np.float64)


def make_rows(rng: np.random.Generator, rows: int, inner: int) -> np.ndarray:
    return rng.standard_normal((rows, inner), np.float32)


def poisoned(matrix: PackedMatrix) -> PackedMatrix:
    """The same matrix, with NaN where its panels are only filled up."""
    panels = np.array(matrix.panels)
    width = panels.shape[2]
    last = matrix.outer - (len(panels) - 1) * width
    panels[-1, :, last:] = np.nan
    if panels.ndim == 4 and matrix.inner % 2:
        panels[:, -1, :, 1] = np.nan
    return matrix.replace(panels=jax.device_put(panels))


def assert_product(found: jax.Array, x: np.ndarray, weight: np.ndarray) -> None:
    wide = x.astype(np.float64)
    gaps = np.abs(np.asarray(found) - wide @ weight)
    assert np.all(gaps <= MAX_ERROR * (np.abs(wide) @ np.abs(weight)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_number_of_rows_agrees_with_float64(
    rng: np.random.Generator, shape: tuple[int, int], dtype: str
) -> None:
    packed, weight = make_matrix(rng, *shape, dtype)
    for rows in ROWS:
        x = make_rows(rng, rows, shape[0])
        assert_product(multiply(jnp.asarray(x), [packed])[0], x, weight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_several_matrices_share_their_rows(rng: np.random.Generator, dtype: str) -> None:
    pairs = [make_matrix(rng, 48, outer, dtype) for outer in (40, 16, 31)]
    for rows in (1, 5, 30):
        x = make_rows(rng, rows, 48)
        found = multiply(jnp.asarray(x), [packed for packed, _ in pairs])
        for out, (_, weight) in zip(found, pairs, strict=True):
            assert_product(out, x, weight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gated_product_is_silu_of_one_times_the_other(
    rng: np.random.Generator, dtype: str
) -> None:
    (gate, wide_gate), (up, wide_up) = (make_matrix(rng, 48, 45, dtype) for _ in range(2))
    scale = np.float32(0.01 if dtype == "int8" else 1)
    for rows in (1, 2, 3, 8, 65):
        x = make_rows(rng, rows, 48) * scale
        gates, ups = x.astype(np.float64) @ wide_gate, x.astype(np.float64) @ wide_up
        found = multiply_gated(jnp.asarray(x), gate, up)
        np.testing.assert_allclose(found, gates / (1 + np.exp(-gates)) * ups, 1e-4, 1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_rows_beside_it(rng: np.random.Generator, dtype: str) -> None:
    packed, _ = make_matrix(rng, 77, 50, dtype)
    x = jnp.asarray(make_rows(rng, 70, 77))
    together = np.asarray(multiply(x, [packed])[0])
    for start, stop in ((0, 1), (3, 5), (9, 12), (20, 27), (0, 70)):
        apart = np.asarray(multiply(x[start:stop], [packed])[0])
        np.testing.assert_array_equal(apart, together[start:stop])


@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_rows_give_zeros_and_change_nothing(rng: np.random.Generator, dtype: str) -> None:
    packed, _ = make_matrix(rng, 77, 50, dtype)
    x = make_rows(rng, 70, 77)
    for num_rows in (0, 1, 7, 64, 70):
        padded = jnp.asarray(np.where(np.arange(70)[:, None] < num_rows, x, np.nan))
        run = jax.jit(
            lambda x, n: (
                *multiply(x, [packed], num_rows=n),
                multiply_gated(x, packed, packed, num_rows=n),
            )
        )
        real = jnp.asarray(x[:num_rows])
        apart = (*multiply(real, [packed]), multiply_gated(real, packed, packed))
        for found, expected in zip(run(padded, jnp.int32(num_rows)), apart, strict=True):
            np.testing.assert_array_equal(found[:num_rows], expected)
            assert not np.any(found[num_rows:])


def test_more_rows_than_there_are_are_refused(rng: np.random.Generator) -> None:
    packed, _ = make_matrix(rng, 8, 8, "float32")
    with pytest.raises(Exception, match="num_rows must be within the rows there are"):
        jax.block_until_ready(multiply(jnp.zeros((2, 8)), [packed], num_rows=jnp.int32(3)))


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_what_fills_up_panels_never_shows(rng: np.random.Generator, dtype: str) -> None:
    packed, weight = make_matrix(rng, 33, 45, dtype)
    for rows in (1, 4, 40):
        x = make_rows(rng, rows, 33)
        assert_product(multiply(jnp.asarray(x), [poisoned(packed)])[0], x, weight)


def test_no_rows_give_no_rows(rng: np.random.Generator) -> None:
    packed, _ = make_matrix(rng, 8, 8, "float32")
    assert multiply(jnp.zeros((0, 8), jnp.float32), [packed])[0].shape == (0, 8)


def test_a_matrix_packed_for_another_machine_is_refused(rng: np.random.Generator) -> None:
    packed, _ = make_matrix(rng, 8, 8, "float32")
    other = packed.replace(panels=packed.panels[:, :, :1])
    with pytest.raises(Exception, match="packed for another machine"):
        jax.block_until_ready(multiply(jnp.zeros((1, 8), jnp.float32), [other]))
