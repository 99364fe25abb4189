"""Random parameters need a configuration and nothing else."""

import jax
import numpy as np
from tiny import tiny_model_config

from paged_jax.models.params import abstract_params
from paged_jax.weights.dummy import dummy_params


def test_dummy_parameters_have_the_model_s_shapes_and_dtype():
    config = tiny_model_config(qk_norm=True, attention_bias=True, dtype="bfloat16")
    params = dummy_params(config, 0)
    assert jax.tree.structure(params) == jax.tree.structure(abstract_params(config))
    for leaf, expected in zip(
        jax.tree.leaves(params), jax.tree.leaves(abstract_params(config)), strict=True
    ):
        assert (leaf.shape, leaf.dtype) == (expected.shape, expected.dtype)


def test_dummy_parameters_depend_on_the_seed_alone():
    one, same, other = (dummy_params(tiny_model_config(), seed) for seed in (1, 1, 2))
    assert jax.tree.all(jax.tree.map(np.array_equal, one, same))
    assert not np.array_equal(one.embed, other.embed)
    assert not np.array_equal(one.layers[0].w_q, one.layers[1].w_q)


def test_dummy_matrices_keep_the_scale_and_norms_are_ones():
    layer = dummy_params(tiny_model_config(), 0).layers[0]
    assert abs(float(layer.w_down.std()) * 128**0.5 - 1) < 0.05
    assert (layer.attn_norm == 1).all()
