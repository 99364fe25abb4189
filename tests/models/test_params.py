"""The parameter pytree has exactly the weights a family has."""

import jax
import pytest
from tiny import make_params, tiny_model_config

from paged_jax.models.params import abstract_params


@pytest.mark.parametrize(
    ("changes", "num_leaves"),
    [
        ({}, 3 + 2 * 9),
        ({"tie_embeddings": True}, 2 + 2 * 9),
        ({"attention_bias": True}, 3 + 2 * 12),
        ({"attention_bias": True, "attention_out_bias": True}, 3 + 2 * 13),
        ({"mlp_bias": True}, 3 + 2 * 12),
        ({"qk_norm": True}, 3 + 2 * 11),
    ],
)
def test_a_family_lacks_what_it_has_not(changes, num_leaves):
    assert len(jax.tree.leaves(abstract_params(tiny_model_config(**changes)))) == num_leaves


def test_matrices_are_kept_as_in_out_in_the_model_s_dtype():
    layer = abstract_params(tiny_model_config(num_q_heads=6, dtype="bfloat16")).layers[0]
    assert layer.w_q.shape == (64, 96) and layer.w_o.shape == (96, 64)
    assert layer.w_k.shape == (64, 32) and layer.w_down.shape == (128, 64)
    assert layer.w_q.dtype == "bfloat16"


def test_parameters_survive_tree_operations():
    params = make_params(tiny_model_config())
    doubled = jax.tree.map(lambda leaf: leaf + leaf, params)
    assert doubled.layers[1].w_q.sum() == 2 * params.layers[1].w_q.sum()
    assert jax.tree.structure(jax.eval_shape(lambda p: p, params)) == jax.tree.structure(params)
