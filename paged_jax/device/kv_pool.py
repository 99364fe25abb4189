"""The KV pool: one array a layer for keys and one for values, token-major.

Slot = block * block_size + offset. Block 0 is the null block: padding writes land there and block
tables are filled with it. Writing donates the pool; nobody may hold an older one.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int

from paged_jax.config import CacheConfig, ModelConfig
from paged_jax.device import platform
from paged_jax.device.sharding import POOL, make_on, struct_on
from paged_jax.device.stages import cut_into_stages
from paged_jax.pytree import pytree
from pallas_kernels import reference

LayerPool = reference.Pool
Scales = reference.Scales
FP8 = "float8_e4m3fn"
# What XLA's CPU scatter would convert to float32 as a whole at every write is kept as its bits
# there (measured for bfloat16: 41 ms against 0.03 ms a step).
BITS = {"bfloat16": np.uint16, FP8: np.uint8}


class LayerKV(NamedTuple):
    """Keys and values of one layer; with scales if they are kept in one byte each."""

    k: LayerPool
    v: LayerPool
    k_scales: Scales | None = None
    v_scales: Scales | None = None


@pytree
class KVPool:
    """Keys and values of every live token.

    Attributes:
        k: per layer [blocks block_size kv_heads head_dim].
        v: per layer, the same shape.
        k_scales: per layer [blocks block_size kv_heads], what to multiply a stored key by; empty
            unless values are one byte.
        v_scales: likewise.
    """

    k: tuple[LayerPool, ...]
    v: tuple[LayerPool, ...]
    k_scales: tuple[Scales, ...] = ()
    v_scales: tuple[Scales, ...] = ()

    @classmethod
    def of(cls, layers: Sequence[LayerKV]) -> "KVPool":
        """Put layers together."""
        scaled = [layer for layer in layers if layer.k_scales is not None]
        return cls(
            k=tuple(layer.k for layer in layers),
            v=tuple(layer.v for layer in layers),
            k_scales=tuple(layer.k_scales for layer in scaled),  # type: ignore[misc]
            v_scales=tuple(layer.v_scales for layer in scaled),  # type: ignore[misc]
        )

    @classmethod
    def joined(cls, parts: Sequence["KVPool"]) -> "KVPool":
        """Put pools of consecutive layers together."""
        return cls.of([layer for part in parts for layer in part.layers()])

    def part(self, layers: range) -> "KVPool":
        """Return the pool of consecutive layers."""
        mine = slice(layers.start, layers.stop)
        return KVPool(
            k=self.k[mine],
            v=self.v[mine],
            k_scales=self.k_scales[mine],
            v_scales=self.v_scales[mine],
        )

    def layers(self) -> list[LayerKV]:
        """Return what each layer reads and writes."""
        return [LayerKV(*arrays) for arrays in zip(*filter(None, self._columns()), strict=True)]

    def _columns(self) -> tuple[tuple[Any, ...], ...]:
        return self.k, self.v, self.k_scales, self.v_scales

    @property
    def num_bytes(self) -> int:
        """Bytes of all layers."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self))


def pool_dtype(model: ModelConfig, cache: CacheConfig) -> str:
    """Return the dtype of keys and values."""
    return {"auto": model.dtype, "fp8": FP8, "fp8_e4m3": FP8}.get(cache.dtype, cache.dtype)


def storage_dtype(dtype: str) -> np.dtype:
    """Return the dtype the pool is kept in: on a CPU, of some dtypes the bits."""
    is_bits = dtype in BITS and platform.target() == "cpu"
    return np.dtype(BITS[dtype] if is_bits else jnp.dtype(dtype))


def block_bytes(model: ModelConfig, cache: CacheConfig) -> int:
    """Return the bytes one block takes over all layers: keys, values and their scales."""
    one = pool_struct(model, replace(cache, num_blocks=1))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(one))


def pool_shape(model: ModelConfig, cache: CacheConfig) -> tuple[int, int, int, int]:
    """Return the shape of one layer's keys."""
    return (cache.num_blocks, cache.block_size, model.num_kv_heads, model.head_dim)


def pool_struct(model: ModelConfig, cache: CacheConfig, mesh: Mesh | None = None) -> KVPool:
    """Return the pool's shapes and dtypes without its memory, for compiling."""
    shape, dtype = pool_shape(model, cache), storage_dtype(pool_dtype(model, cache))
    layers = list[LayerKV]()
    for stage in cut_into_stages(mesh, model.num_layers):
        values: Any = struct_on(stage.mesh, shape, dtype, POOL)
        scales: Any = struct_on(stage.mesh, shape[:-1], np.dtype(np.float32), POOL)
        scaling = (scales, scales) if dtype.itemsize == 1 else ()
        layers += [LayerKV(values, values, *scaling)] * len(stage.layers)
    return KVPool.of(layers)


def init_pool(model: ModelConfig, cache: CacheConfig, mesh: Mesh | None = None) -> KVPool:
    """Return a pool of zeros: layers on their stages, heads divided among a stage's devices."""

    def zeros(num_layers: int) -> KVPool:
        struct = pool_struct(replace(model, num_layers=num_layers), cache)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), struct)

    stages = cut_into_stages(mesh, model.num_layers)
    return KVPool.joined(
        [make_on(stage.mesh, partial(zeros, len(stage.layers)), POOL) for stage in stages]
    )


def copy_blocks(
    pool: KVPool, source: Int[Array, " copies"], target: Int[Array, " copies"]
) -> KVPool:
    """Copy whole blocks, for copy-on-write. Padding pairs are (0, 0). Donates: pool."""
    return jax.tree.map(lambda leaf: leaf.at[target].set(leaf[source]), pool)
