"""What of a model can be divided, and how the errors help."""

import jax
import numpy as np
import pytest
from tiny import tiny_model_config

from paged_jax.config import OptionError, Quantisation
from paged_jax.models.layout import AXES, WeightLayout, divided
from paged_jax.models.params import LayerParams, ModelParams
from paged_jax.weights.int8 import quantise

SMOLLM2 = tiny_model_config(num_q_heads=9, num_kv_heads=3, mlp_dim=96)


@pytest.mark.parametrize(
    ("config", "tensor", "message"),
    [
        (SMOLLM2, 2, r"9 query heads .* choose one of 1, 3$"),
        (SMOLLM2, 9, r"MLP of 96 cannot be divided: choose one of 1, 3$"),
        (tiny_model_config(num_q_heads=12, num_kv_heads=6), 4, r"6 key/value heads .* 1, 2$"),
        (tiny_model_config(quantisation=Quantisation("awq", 4, 32)), 4, r"groups of 32 .* 1, 2$"),
        (tiny_model_config(quantisation=Quantisation("gptq", 4, 16, 1, True)), 2, "desc_act"),
        (tiny_model_config(quantisation=Quantisation("gptq", 4)), 2, r"4-bit runs of 64 .* 1$"),
    ],
)
def test_what_cannot_be_cut_is_named_with_the_sizes_that_can(config, tensor, message) -> None:
    with pytest.raises(OptionError, match=message):
        divided(config, tensor)


def test_key_value_heads_are_repeated_and_the_cost_is_told(caplog) -> None:
    assert divided(tiny_model_config(), 2).num_kv_heads == 2
    assert not caplog.records

    assert divided(tiny_model_config(), 4).num_kv_heads == 4

    assert "takes 2 times the memory" in caplog.text


def test_every_weight_says_how_it_is_cut() -> None:
    fields = {*ModelParams.__dataclass_fields__, *LayerParams.__dataclass_fields__}

    assert set(AXES) == fields - {"layers"}


def test_without_a_mesh_all_is_placed_on_one_device() -> None:
    layout, weight = WeightLayout(tiny_model_config()), np.ones((64, 32), np.float32)

    placed = layout.place("w_k", quantise(weight))

    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(placed))
    np.testing.assert_array_equal(np.asarray(placed.values), 127)
