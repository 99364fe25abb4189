"""Quantised matrices in place of floats: order of inputs, dtypes, and which product runs where."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paged_jax.device import platform
from paged_jax.models.layers import linear
from paged_jax.models.quantised import QuantisedMatrix, dequantise, multiply
from pallas_kernels.quant_matmul import pack


def make_matrix(*, is_ordered: bool = False, outer: int = 32) -> QuantisedMatrix:
    rng = np.random.default_rng(0)
    values = rng.integers(-8, 8, (64, outer)).astype(np.int8)
    return QuantisedMatrix(
        values=jnp.asarray(pack(values, bits=4, group_size=32)),
        scales=jnp.asarray(rng.uniform(0.01, 0.05, (2, outer)), jnp.float16),
        zeros=jnp.asarray(rng.integers(-8, 8, (2, outer)), jnp.int8),
        order=jnp.asarray(rng.permutation(64), jnp.int32) if is_ordered else None,
        bits=4,
    )


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_linear_multiplies_by_what_the_values_stand_for(rng, is_ordered, dtype, limit):
    matrix = make_matrix(is_ordered=is_ordered)
    x, bias = jnp.asarray(rng.normal(size=(5, 64)), dtype), jnp.ones(32, dtype)
    actual = linear(x, matrix, bias)
    assert actual.dtype == dtype
    expected = np.float64(x) @ np.float64(dequantise(matrix)) + 1
    np.testing.assert_allclose(np.float64(actual), expected, rtol=0, atol=limit)


def test_the_order_is_of_the_inputs_that_rows_belong_to():
    matrix = make_matrix(is_ordered=True)
    rows, order = dequantise(matrix.replace(order=None)), np.asarray(matrix.order)
    assert np.array_equal(np.asarray(dequantise(matrix))[order], rows)


def test_only_packed_arrays_are_parameters():
    matrix = make_matrix()
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(matrix)) == 64 * 32 // 2 + 2 * 32 * 3
    assert jax.tree.map(lambda leaf: leaf, matrix).bits == 4


@pytest.mark.skipif(
    jax.__version_info__ >= (0, 11), reason="newer JAX lowers for a GPU only where it is given one"
)
@pytest.mark.parametrize(
    ("rows", "outer", "has_kernel"),
    [(1, 32, True), (256, 32, True), (257, 32, False), (1, 8, False)],
)
def test_a_gpu_runs_the_kernel_within_its_limits(monkeypatch, rows, outer, has_kernel):
    monkeypatch.setattr(platform, "is_nvidia", lambda: True)
    x, matrix = jnp.ones((rows, 64), jnp.bfloat16), make_matrix(outer=outer)
    lowered = jax.jit(multiply).trace(x, matrix).lower(lowering_platforms=("cuda",))
    assert ("quant_matmul_int4" in lowered.as_text()) == has_kernel


def test_a_cpu_never_runs_the_kernel():
    lowered = jax.jit(multiply).lower(jnp.ones((1, 64), jnp.float32), make_matrix())
    assert "quant_matmul_int4" not in lowered.as_text()
