"""Rotary frequencies against values worked out by hand; parity tests ask transformers."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from oracle import frequencies
from tiny import tiny_model_config

from paged_jax.config import ModelConfig, RopeScaling
from paged_jax.models.rope import attention_factor, inverse_frequencies, rope_angles, rotate

PLAIN = 10000.0 ** -(np.arange(8) / 8)


def make_config(**scaling) -> ModelConfig:
    return tiny_model_config(rope_scaling=RopeScaling(**scaling))


def at(config: ModelConfig, position: int, prompt_len: int) -> np.ndarray:
    """The angles of one token."""
    cos, sin = rope_angles(jnp.asarray([position]), jnp.asarray([prompt_len]), config)
    return np.arctan2(sin, cos)[0]


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({}, PLAIN),
        ({"kind": "linear", "factor": 4.0}, PLAIN / 4),
        ({"kind": "dynamic", "factor": 4.0, "original_max_position": 64}, PLAIN),
        ({"divisors": (2.0,) * 8}, PLAIN / 2),
        ({"kind": "linear", "factor": 4.0, "divisors": (2.0,) * 8}, PLAIN / 8),
    ],
)
def test_frequencies_of_simple_kinds_are_the_formula_s(scaling, expected):
    np.testing.assert_allclose(inverse_frequencies(make_config(**scaling)), expected, rtol=1e-12)


def test_llama3_keeps_fast_and_divides_slow_frequencies():
    scaled = inverse_frequencies(make_config(kind="llama3", factor=8.0, original_max_position=64))
    turns = 64 * PLAIN / (2 * math.pi)
    assert np.array_equal(scaled[turns > 4], PLAIN[turns > 4]) and (turns > 4).any()
    np.testing.assert_allclose(scaled[turns < 1], PLAIN[turns < 1] / 8, rtol=1e-12)
    between = (turns > 1) & (turns < 4)
    assert between.any() and (scaled[between] < PLAIN[between]).all()


def test_yarn_keeps_fast_and_divides_slow_frequencies():
    scaled = inverse_frequencies(make_config(kind="yarn", factor=4.0, original_max_position=64))
    assert scaled[0] == PLAIN[0] and scaled[-1] == pytest.approx(PLAIN[-1] / 4)
    assert (np.diff(scaled) < 0).all()


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({}, 1.0),
        ({"kind": "linear", "factor": 4.0}, 1.0),
        ({"kind": "yarn", "factor": 4.0}, 0.1 * math.log(4) + 1),
        ({"kind": "yarn", "factor": 0.5}, 1.0),
        ({"kind": "yarn", "factor": 4.0, "attention_factor": 0.5}, 0.5),
        (
            {"kind": "yarn", "factor": 4.0, "mscale": 0.5, "mscale_all_dim": 0.2},
            (0.05 * math.log(4) + 1) / (0.02 * math.log(4) + 1),
        ),
    ],
)
def test_attention_factor_is_the_formula_s(scaling, expected):
    assert attention_factor(RopeScaling(**scaling)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("position", "prompt_len", "length"), [(1, 40, 64), (1, 100, 100), (80, 100, 100), (99, 7, 100)]
)
def test_dynamic_uses_the_prompt_s_length_then_the_token_s_own(position, prompt_len, length):
    config = make_config(kind="dynamic", factor=4.0, original_max_position=64)
    expected = position * frequencies(config, length)
    turns = np.exp(1j * at(config, position, prompt_len))
    np.testing.assert_allclose(turns, np.exp(1j * expected), atol=2e-5)


def test_rotation_turns_each_pair_of_halves(rng):
    x = jnp.asarray(rng.normal(size=(1, 2, 16)), jnp.float32)
    config = tiny_model_config()
    angles = rope_angles(jnp.asarray([5]), jnp.asarray([6]), config)
    halves = np.asarray(x, np.float64)[..., :8] + 1j * np.asarray(x, np.float64)[..., 8:]
    turned = halves * np.exp(5j * PLAIN)
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    np.testing.assert_allclose(rotate(x, angles), expected, atol=1e-5)


def test_rotation_keeps_the_dtype():
    x = jnp.ones((1, 2, 16), jnp.bfloat16)
    angles = rope_angles(jnp.asarray([5]), jnp.asarray([6]), tiny_model_config())
    assert rotate(x, angles).dtype == jnp.bfloat16
