"""Norm, linear map and MLP against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from tiny import make_params, tiny_model_config

from paged_jax.models.layers import gated_mlp, linear, rms_norm


def test_rms_norm_equals_numpy_on_every_leading_axis(rng):
    x, weight = rng.normal(size=(3, 2, 16)), rng.normal(size=16)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight
    actual = rms_norm(jnp.asarray(x, jnp.float32), jnp.asarray(weight, jnp.float32), 1e-5)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_rms_norm_of_half_precision_takes_its_statistics_in_float32():
    x = jnp.full((1, 1024), 300.0, jnp.float16)  # the sum of squares exceeds float16
    actual = rms_norm(x, jnp.ones(1024, jnp.float16), 1e-5)
    assert actual.dtype == jnp.float16
    np.testing.assert_allclose(actual, 1.0, rtol=1e-3)


def test_rms_norm_of_zeros_is_zero():
    assert not rms_norm(jnp.zeros((2, 8)), jnp.ones(8), 1e-5).any()


@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_equals_numpy(has_bias, rng):
    x, weight, bias = rng.normal(size=(5, 8)), rng.normal(size=(8, 3)), rng.normal(size=3)
    arrays = [jnp.asarray(a, jnp.float32) for a in (x, weight, bias)]
    actual = linear(*arrays) if has_bias else linear(*arrays[:2])
    np.testing.assert_allclose(actual, x @ weight + bias * has_bias, rtol=1e-5, atol=1e-5)


def test_gated_mlp_equals_numpy_with_biases(rng):
    layer = make_params(tiny_model_config(mlp_bias=True)).layers[0]
    x = rng.normal(size=(5, 64))
    wide = lambda leaf: np.asarray(leaf, np.float64)  # noqa: E731
    gate = x @ wide(layer.w_gate) + wide(layer.b_gate)
    up = x @ wide(layer.w_up) + wide(layer.b_up)
    expected = (gate / (1 + np.exp(-gate)) * up) @ wide(layer.w_down) + wide(layer.b_down)
    actual = gated_mlp(jnp.asarray(x, jnp.float32), layer)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
