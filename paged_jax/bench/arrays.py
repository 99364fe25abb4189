"""Random arrays made on the device itself: a host would take minutes for a model's weights."""

from functools import partial

import jax
import jax.numpy as jnp

from paged_jax.config import ModelConfig
from paged_jax.models.params import ModelParams, abstract_params

RANDOM_BLOCKS = 256


@partial(jax.jit, static_argnums=(1, 2))
def random_matrix(seed: int, shape: tuple[int, int], dtype: str) -> jax.Array:
    """Return normal values such that products with it keep their size."""
    values = jax.random.normal(jax.random.key(seed), shape, dtype)
    return values * jnp.asarray(shape[0] ** -0.5, dtype)


@partial(jax.jit, static_argnums=(1, 2))
def random_array(seed: int, shape: tuple[int, ...], dtype: str) -> jax.Array:
    """Return normal values of order 1."""
    return jax.random.normal(jax.random.key(seed), shape, dtype)


@partial(jax.jit, static_argnums=(1,))
def random_int8(seed: int, shape: tuple[int, ...]) -> jax.Array:
    """Return integers from -127 to 127."""
    return jax.random.randint(jax.random.key(seed), shape, -127, 128, jnp.int8)


def random_pool(seed: int, shape: tuple[int, int, int, int], dtype: str) -> jax.Array:
    """Return keys or values [blocks block_size kv_heads head_dim]; some blocks, repeated."""
    some = random_array(seed, (min(shape[0], RANDOM_BLOCKS), *shape[1:]), dtype)
    return jnp.tile(some, (-(-shape[0] // len(some)), 1, 1, 1))[: shape[0]]


def random_params(config: ModelConfig) -> ModelParams:
    """Return the parameters of a model; vectors, which are norms and biases, are ones."""
    leaves, tree = jax.tree.flatten(abstract_params(config))
    values = [
        jnp.ones(leaf.shape, leaf.dtype)
        if len(leaf.shape) == 1
        else random_matrix(index, leaf.shape, leaf.dtype.name)
        for index, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(tree, values)
