"""The forward pass equals the float64 oracle, however the tokens are cut into steps."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drive import BLOCK_SIZE, drive, make_sequences
from tiny import make_params, oracle_logits, tiny_model_config

from paged_jax.config import CacheConfig, ModelConfig, RopeScaling
from paged_jax.device.kv_pool import init_pool
from paged_jax.device.step_batch import BatchShape, empty_batch, pack
from paged_jax.host.request import Chunk
from paged_jax.models.transformer import forward, logits

ATOL = 1e-4  # float32 sums of at most 200 terms; logits are of size 10

FAMILIES = {
    "llama": {},
    "llama with biases": {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
    "mistral": {"family": "mistral", "windows": (8, 8)},
    "qwen2": {"family": "qwen2", "attention_bias": True, "windows": (None, 6)},
    "qwen3": {"family": "qwen3", "qk_norm": True, "head_dim": 24},
    "tied": {"tie_embeddings": True},
    "groups of 3": {"num_q_heads": 6},
    "groups of 5": {"num_q_heads": 5, "num_kv_heads": 1},
    "groups of 7": {"num_q_heads": 7, "num_kv_heads": 1, "head_dim": 8},
}
SCALINGS = {
    "linear": RopeScaling("linear", 4.0),
    "dynamic": RopeScaling("dynamic", 4.0, 16),
    "yarn": RopeScaling("yarn", 4.0, 16),
    "llama3": RopeScaling("llama3", 4.0, 16),
    "divisors": RopeScaling(divisors=tuple(1.0 + i for i in range(8))),
}


def make_ids(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, 320, count).tolist()


def agree(actual: np.ndarray, config: ModelConfig, ids: list[int], **oracle) -> None:
    expected = oracle_logits(config, make_params(config), ids, **oracle)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("changes", FAMILIES.values(), ids=FAMILIES)
def test_forward_equals_oracle_for_each_family_however_chunked(changes):
    config, ids = tiny_model_config(**changes), make_ids(23)
    for chunk in (None, 5, 1):
        (actual,) = drive(config, make_params(config), [ids], chunk=chunk)
        agree(actual, config, ids)


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_forward_equals_oracle_for_each_scaling(scaling):
    config, ids = tiny_model_config(rope_scaling=scaling, max_position=16), make_ids(40)
    (actual,) = drive(config, make_params(config), [ids], chunk=7, prompt_len=36)
    agree(actual, config, ids, prompt_len=36)


def test_dynamic_lengths_are_each_sequence_s_own():
    scaling = RopeScaling("dynamic", 4.0, 16)
    config = tiny_model_config(rope_scaling=scaling, max_position=16)
    texts = [make_ids(10, 1), make_ids(33, 2)]
    together = drive(config, make_params(config), texts, chunk=6)
    for actual, ids in zip(together, texts, strict=True):
        agree(actual, config, ids)


def test_a_decode_crossing_the_dynamic_border_uses_each_token_s_length():
    scaling = RopeScaling("dynamic", 4.0, 16)
    config, ids = tiny_model_config(rope_scaling=scaling, max_position=16), make_ids(22)
    (actual,) = drive(config, make_params(config), [ids], prompt_len=12)
    agree(actual, config, ids, prompt_len=12)
    wrong = oracle_logits(config, make_params(config), ids)
    assert np.abs(actual[-1] - wrong[-1]).max() > 10 * ATOL


def test_sequences_do_not_see_each_other():
    config = tiny_model_config()
    texts = [make_ids(9, 1), make_ids(17, 2), make_ids(3, 3)]
    for actual, ids in zip(drive(config, make_params(config), texts, chunk=4), texts, strict=True):
        agree(actual, config, ids)


@pytest.mark.parametrize(("distance", "is_seen"), [(7, True), (8, False)])
def test_a_window_of_8_sees_itself_and_7_earlier(distance, is_seen):
    config = tiny_model_config(num_layers=1, windows=(8,))
    ids = make_ids(20)
    changed = [*ids]
    changed[-1 - distance] = ids[-1 - distance] - 1
    before, after = drive(config, make_params(config), [ids, changed])
    assert np.array_equal(before[-1], after[-1]) is not is_seen


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_the_oracle(dtype):
    config, ids = tiny_model_config(dtype=dtype), make_ids(12)
    params = make_params(config)
    (actual,) = drive(config, params, [ids], chunk=5)
    expected = oracle_logits(config, params, ids)
    allowed = 16 * float(jnp.finfo(dtype).eps) * np.abs(expected).max()
    assert np.abs(actual - expected).max() < allowed


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_float32_whatever_the_dtype(tied, rng):
    config = tiny_model_config(dtype="bfloat16", tie_embeddings=tied)
    hidden = jnp.asarray(rng.normal(size=(3, 64)), jnp.bfloat16)
    params = make_params(config)
    table = jax.jit(logits)(params, hidden)
    head = params.embed.T if tied else params.unembed
    expected = np.asarray(hidden, np.float64) @ np.asarray(head, np.float64)
    assert table.dtype == jnp.float32 and table.shape == (3, 320)
    assert np.abs(table - expected).max() < 1e-4


def test_forward_takes_host_arrays_without_jit():
    config, params = tiny_model_config(), make_params(tiny_model_config())
    (sequence,) = make_sequences([make_ids(6)])
    batch = pack([Chunk(sequence, 0, 6, 1)], BatchShape(8, 1, 2, 1), BLOCK_SIZE)
    hidden, _ = forward(params, init_pool(config, CacheConfig(3, BLOCK_SIZE)), batch, config)
    agree(np.asarray(logits(params, hidden[:6])), config, make_ids(6))


def test_phases_are_named_in_the_program():
    config = tiny_model_config()
    pool = init_pool(config, CacheConfig(3, BLOCK_SIZE))
    lowered = jax.jit(partial(forward, config=config)).lower(
        make_params(config), pool, empty_batch(BatchShape(8, 2, 2, 2))
    )
    text = lowered.as_text(debug_info=True)
    assert all(f"{phase}/" in text for phase in ("qkv", "write_kv", "attention", "mlp"))
