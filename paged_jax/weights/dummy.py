"""Random parameters: a model of the right shape that needs no weights, for tests and benchmarks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paged_jax.config import ModelConfig, Quantisation
from paged_jax.models.layout import WeightLayout
from paged_jax.models.params import ModelParams, abstract_params
from paged_jax.models.quantised import QuantisedMatrix
from paged_jax.weights.int8 import quantise
from paged_jax.weights.packing import group_len

EMBED_STD = 0.02


def dummy_params(config: ModelConfig, seed: int, layout: WeightLayout | None = None) -> ModelParams:
    """Return parameters that depend on `config` and `seed` alone; norms are ones.

    Args:
        layout: where they go; None is the default device.

    Raises:
        ModelError: the matrices cannot be packed as the configuration says.
    """
    rng = np.random.default_rng(seed)
    leaves, tree = jax.tree_util.tree_flatten_with_path(abstract_params(config))
    place = (layout or WeightLayout(config)).place

    def make(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Any:
        name, layer = path[-1].name, path[1].idx if len(path) > 1 else None
        return place(name, _leaf(rng, name, leaf, config.quantisation), layer)

    return jax.tree.unflatten(tree, [make(*each) for each in leaves])


def _leaf(
    rng: np.random.Generator,
    name: str,
    leaf: jax.ShapeDtypeStruct,
    scheme: Quantisation | None,
) -> np.ndarray | QuantisedMatrix:
    if name.endswith("norm"):
        return np.ones(leaf.shape, leaf.dtype)
    std = leaf.shape[0] ** -0.5 if name.startswith("w_") or name == "unembed" else EMBED_STD
    values = rng.standard_normal(leaf.shape, dtype=np.float32) * np.float32(std)
    if scheme is not None and name.startswith("w_"):
        size = group_len(leaf.shape[0], scheme.group_size, bits=scheme.bits, what=name)
        return quantise(values, bits=scheme.bits, group_size=size)
    return values.astype(jnp.dtype(leaf.dtype))
