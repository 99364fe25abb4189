"""A model whose matrices are packed for the CPU kernels, against the float64 oracle."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drive import drive
from oracle import oracle_logits
from tiny import make_params, tiny_model_config

from paged_jax.compiled.step import draw
from paged_jax.config import ModelConfig
from paged_jax.device.cpu import kernels
from paged_jax.device.sampling_rows import RowShape, pack_rows
from paged_jax.models.packed import PackedMatrix, look_up, place
from paged_jax.models.params import ModelParams
from paged_jax.models.quantised import QuantisedMatrix, dequantise
from paged_jax.models.transformer import likeliest, logits
from paged_jax.weights.int8 import quantise

pytestmark = pytest.mark.cpu_kernels

IDS = list(range(3, 20))


def make_packed(params: ModelParams, config: ModelConfig) -> ModelParams:
    """The same parameters in the kernels' layout, vectors widened."""

    def put(path: tuple, leaf: jax.Array | QuantisedMatrix) -> jax.Array | PackedMatrix:
        if isinstance(leaf, QuantisedMatrix):
            return place(path[-1].name, leaf, config)
        host = np.asarray(leaf)
        wide = host.astype(config.activation_dtype) if host.ndim == 1 else host
        return place(path[-1].name, wide, config)

    is_leaf = lambda leaf: isinstance(leaf, QuantisedMatrix)  # noqa: E731
    return jax.tree_util.tree_map_with_path(put, params, is_leaf=is_leaf)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.1)])
def test_logits_are_the_oracle_s(dtype: str, tolerance: float, tied: bool) -> None:
    config = tiny_model_config(dtype=dtype, tie_embeddings=tied, attention_bias=True)
    params = make_params(config)
    config = replace(config, is_packed=True)
    (found,) = drive(config, make_packed(params, config), [IDS])
    np.testing.assert_allclose(found, oracle_logits(config, params, IDS), rtol=0, atol=tolerance)


@pytest.mark.parametrize(("tied", "limit"), [(True, None), (False, 40)])
def test_a_greedy_step_of_many_rows_draws_the_likeliest_ids(rng, tied: bool, limit: int | None):
    config = tiny_model_config(dtype="bfloat16", tie_embeddings=tied, vocab_limit=limit)
    packed = replace(config, is_packed=True)
    params = make_packed(make_params(config), packed)
    hidden = jnp.asarray(rng.standard_normal((32, config.embed_dim), np.float32))
    rows = replace(pack_rows([], RowShape(32, 8, 4)), is_plain=True)
    rows = replace(rows, positions=np.arange(31, -1, -1, dtype=np.int32))  # 0 is padding
    found = likeliest(params, hidden, num_rows=jnp.int32(31), limit=limit or config.vocab_size)
    assert (found is not None) == kernels.loaded().has_pair_products()

    out, _ = draw(params, hidden, rows, packed, max_logprobs=0)

    best = np.asarray(logits(params, hidden))[:, :limit].argmax(axis=1)
    assert out.tokens[:31].tolist() == best[:31].tolist() and len(set(best)) > 5


def test_biased_gates_are_not_left_out() -> None:
    config = tiny_model_config(mlp_bias=True, is_packed=True)
    params = make_params(config)
    (found,) = drive(config, make_packed(params, config), [IDS])
    np.testing.assert_allclose(found, oracle_logits(config, params, IDS), rtol=0, atol=1e-4)


@pytest.mark.parametrize("field", ["w_q", "w_up"])
def test_8_bit_matrices_are_packed_and_multiplied_apart_from_floats(field: str) -> None:
    config = tiny_model_config(is_packed=True)
    params = make_params(config)
    narrow = lambda layer: quantise(np.asarray(getattr(layer, field)))  # noqa: E731
    with_field = lambda make: params.replace(  # noqa: E731
        layers=tuple(layer.replace(**{field: make(layer)}) for layer in params.layers)
    )
    packed = make_packed(with_field(narrow), config)
    assert getattr(packed.layers[0], field).panels.dtype == jnp.int8
    (found,) = drive(config, packed, [IDS])
    plain = with_field(lambda layer: dequantise(jax.tree.map(jnp.asarray, narrow(layer))))
    np.testing.assert_allclose(found, oracle_logits(config, plain, IDS), rtol=0, atol=1e-4)


def test_4_bit_matrices_stay_as_they_are() -> None:
    matrix = quantise(np.ones((32, 8), np.float32), bits=4)
    assert isinstance(place("w_q", matrix, tiny_model_config(is_packed=True)), QuantisedMatrix)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tied_embedding_is_one_array_that_is_looked_up_exactly(
    rng: np.random.Generator, dtype: str
) -> None:
    config = tiny_model_config(dtype=dtype, tie_embeddings=True, is_packed=True)
    embed = rng.standard_normal((50, 33), np.float32).astype(jnp.dtype(dtype))
    packed = place("embed", embed, config)
    tokens = np.array([0, 49, 7, 15, 16, 7] * 4, np.int32)
    found = look_up(packed, jnp.asarray(tokens), "float32")
    np.testing.assert_array_equal(found, embed[tokens].astype(np.float32))
    assert len(jax.tree.leaves(packed)) == 1


def test_nothing_is_packed_where_the_configuration_does_not_say_so() -> None:
    array = np.ones((4, 4), np.float32)
    assert isinstance(place("w_q", array, tiny_model_config()), jax.Array)
