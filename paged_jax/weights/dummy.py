"""Random parameters: a model of the right shape that needs no weights, for tests and benchmarks."""

import jax
import jax.numpy as jnp
import numpy as np

from paged_jax.config import ModelConfig
from paged_jax.models.params import ModelParams, abstract_params

EMBED_STD = 0.02


def dummy_params(config: ModelConfig, seed: int) -> ModelParams:
    """Return parameters that depend on `config` and `seed` alone; norms are ones."""
    rng = np.random.default_rng(seed)
    leaves, tree = jax.tree_util.tree_flatten_with_path(abstract_params(config))
    return jax.tree.unflatten(tree, [_leaf(rng, path[-1].name, leaf) for path, leaf in leaves])


def _leaf(rng: np.random.Generator, name: str, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    if name.endswith("norm"):
        return jnp.ones(leaf.shape, leaf.dtype)
    std = leaf.shape[0] ** -0.5 if name.startswith("w_") or name == "unembed" else EMBED_STD
    values = rng.standard_normal(leaf.shape, dtype=np.float32) * np.float32(std)
    return jax.device_put(values.astype(jnp.dtype(leaf.dtype)))
