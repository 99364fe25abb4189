"""The C++ argmax: the first of the largest, wherever it lies."""

import jax.numpy as jnp
import numpy as np
import pytest

from paged_jax.device.cpu.argmax import argmax

pytestmark = pytest.mark.cpu_kernels


@pytest.mark.parametrize("vocab", [1, 7, 255, 256, 257, 16384, 49152, 50001])
def test_it_equals_numpy(vocab: int) -> None:
    logits = np.random.default_rng(0).normal(size=(9, vocab)).astype(np.float32)
    np.testing.assert_array_equal(argmax(jnp.asarray(logits)), logits.argmax(axis=1))


@pytest.mark.parametrize("first", [0, 5, 300, 16383, 16384, 39999])
def test_of_equals_the_first_is_taken(first: int) -> None:
    logits = np.full((2, 40000), -1.0, np.float32)
    logits[1, first:] = 3.0
    assert argmax(jnp.asarray(logits)).tolist() == [0, first]


def test_rows_of_minus_infinity_give_0() -> None:
    assert argmax(jnp.full((3, 20000), -jnp.inf)).tolist() == [0, 0, 0]


def test_columns_past_the_limit_are_not_looked_at() -> None:
    logits = jnp.arange(20000, dtype=jnp.float32)[None, :]
    assert [int(argmax(logits, limit=n)[0]) for n in (1, 17000, 30000)] == [0, 16999, 19999]


def test_nan_is_never_the_largest() -> None:
    logits = jnp.array([[jnp.nan, 1.0, jnp.nan, 2.0], [jnp.nan] * 4], jnp.float32)
    assert argmax(logits).tolist() == [3, 0]
