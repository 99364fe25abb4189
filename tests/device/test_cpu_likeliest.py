"""The largest product is found without all the products, and is the one they would give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paged_jax.device.cpu import kernels
from paged_jax.device.cpu.likeliest import MIN_ROWS, is_faster, likeliest
from paged_jax.device.cpu.matmul import PackedMatrix, multiply, pack

pytestmark = pytest.mark.cpu_kernels


def make(
    rng: np.random.Generator, rows: int, inner: int, outer: int
) -> tuple[np.ndarray, PackedMatrix]:
    weight = rng.standard_normal((inner, outer), np.float32).astype(jnp.bfloat16)
    return rng.standard_normal((rows, inner), np.float32), pack(weight)


def found(x: np.ndarray, matrix: PackedMatrix, *, num_rows: int | None = None, limit: int = 2**31):
    count = jnp.int32(len(x) if num_rows is None else num_rows)
    return likeliest(jnp.asarray(x), matrix, num_rows=count, limit=limit).tolist()


@pytest.mark.parametrize("shape", [(64, 96, 2000), (7, 33, 45), (1, 1, 1), (30, 576, 20000)])
def test_it_is_the_argmax_of_the_products(rng, shape: tuple[int, int, int]) -> None:
    x, matrix = make(rng, *shape)
    products = np.asarray(multiply(jnp.asarray(x), [matrix])[0])
    assert found(x, matrix) == products.argmax(axis=1).tolist()
    limit = max(shape[2] // 3, 1)
    assert found(x, matrix, limit=limit) == products[:, :limit].argmax(axis=1).tolist()


def test_of_equal_products_the_first_is_taken(rng) -> None:
    """2,000 outputs that differ in the last bit of two inputs: four products a row."""
    near = np.ones((96, 2000))
    near[:2] += rng.integers(0, 2, (2, 2000)) * 2.0**-7
    matrix, x = pack(near.astype(jnp.bfloat16)), rng.standard_normal((32, 96), np.float32)
    products = np.asarray(multiply(jnp.asarray(x), [matrix])[0])
    assert max(len(set(row)) for row in products.tolist()) <= 4
    assert found(x, matrix) == products.argmax(axis=1).tolist()


def test_rows_past_the_count_and_rows_of_nan_give_0(rng) -> None:
    x, matrix = make(rng, 5, 64, 100)
    x[1, 3] = np.nan
    products = np.asarray(multiply(jnp.asarray(x), [matrix])[0]).argmax(axis=1).tolist()
    assert found(x, matrix, num_rows=3) == [products[0], 0, products[2], 0, 0]


def test_a_matrix_of_another_dtype_and_few_rows_go_the_plain_way(rng) -> None:
    matrix = make(rng, 1, 8, 8)[1]
    assert is_faster(matrix, MIN_ROWS) == kernels.loaded().has_pair_products()
    assert not is_faster(matrix, MIN_ROWS - 1)
    assert not is_faster(pack(np.ones((8, 8), np.float32)), MIN_ROWS)


def test_a_count_of_more_rows_than_there_are_is_refused(rng) -> None:
    x, matrix = make(rng, 2, 8, 8)
    with pytest.raises(jax.errors.JaxRuntimeError, match="num_rows must be within"):
        found(x, matrix, num_rows=3)
