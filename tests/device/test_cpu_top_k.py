"""The C++ top-k against XLA's: values, order, and which of equals comes first."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from paged_jax.device.cpu.top_k import top_k

pytestmark = pytest.mark.cpu_kernels


def check(logits: np.ndarray, k: int) -> None:
    values, ids = top_k(jnp.asarray(logits), k)
    wanted, at = lax.top_k(jnp.asarray(logits), k)
    np.testing.assert_array_equal(values, wanted)
    np.testing.assert_array_equal(ids, at)


@pytest.mark.parametrize("vocab", [1, 31, 32, 257, 5000, 49152])
@pytest.mark.parametrize("k", [1, 20, 256])
def test_it_equals_xlas(vocab: int, k: int, rng: np.random.Generator) -> None:
    check(rng.normal(size=(5, vocab)).astype(np.float32), min(k, vocab))


def test_of_equals_the_first_come_first(rng: np.random.Generator) -> None:
    check(rng.integers(0, 9, size=(4, 3000)).astype(np.float32), 256)


@pytest.mark.parametrize("step", [1, -1])
def test_rising_and_falling_rows(step: int) -> None:
    check(np.arange(20000, dtype=np.float32)[None, ::step], 100)


def test_minus_infinity_is_a_value(rng: np.random.Generator) -> None:
    logits = np.full((2, 1000), -np.inf, np.float32)
    logits[1, rng.integers(0, 1000, size=7)] = 1.0
    check(logits, 20)


def test_nan_counts_for_nothing() -> None:
    logits = jnp.full((1, 100), jnp.nan).at[0, 3].set(2.0).at[0, 70].set(5.0)
    values, ids = top_k(logits, 3)
    assert values[0].tolist() == [5.0, 2.0, -np.inf]
    assert ids[0].tolist() == [70, 3, 0]


def test_no_column_is_asked_for() -> None:
    values, ids = top_k(jnp.zeros((2, 9)), 0)
    assert values.shape == ids.shape == (2, 0)
