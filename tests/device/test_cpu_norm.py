"""The C++ norm against float64, for rows and row lengths that no vector fits."""

import jax.numpy as jnp
import numpy as np
import pytest

from paged_jax.device.cpu.norm import add_rms_norm, rms_norm

pytestmark = pytest.mark.cpu_kernels

TOLERANCE = 1e-6  # float32: a sum of a few hundred squares, a root and two products


def expected(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    wide = np.float64(x)
    return wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight


@pytest.mark.parametrize("shape", [(1, 576), (40, 577), (3, 2, 7), (300, 1), (0, 64)])
def test_each_row_is_normed(rng, shape: tuple[int, ...]) -> None:
    x, weight = (rng.normal(size=s).astype(np.float32) for s in (shape, shape[-1:]))
    got = rms_norm(jnp.asarray(x), jnp.asarray(weight), 1e-5)
    np.testing.assert_allclose(got, expected(x, weight), rtol=TOLERANCE)


def test_a_sum_and_its_norm_are_given(rng) -> None:
    x, added = rng.normal(size=(2, 33, 100)).astype(np.float32)
    weight = rng.normal(size=100).astype(np.float32)
    total, normed = add_rms_norm(*map(jnp.asarray, (x, added, weight)), 1e-5)
    np.testing.assert_array_equal(total, x + added)
    np.testing.assert_allclose(normed, expected(x + added, weight), rtol=TOLERANCE)


def test_a_row_is_the_same_bits_beside_others(rng) -> None:
    x, weight = jnp.asarray(rng.normal(size=(50, 576)), jnp.float32), jnp.ones(576)
    alone = [rms_norm(row[None], weight, 1e-5)[0] for row in x[::7]]
    np.testing.assert_array_equal(rms_norm(x, weight, 1e-5)[::7], np.stack(alone))
