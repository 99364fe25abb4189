"""Keys and values token by token, out of a pool and into another of any block size and mesh.

A row is what one token has in one array: [kv_heads head_dim], or [kv_heads] of scales. Rows are
kept as their bits where numpy has no such dtype.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paged_jax.device.kv_pool import KVPool

Rows = dict[str, np.ndarray]  # by array: [tokens kv_heads *head_dim]
COLUMNS = ("k", "v", "k_scales", "v_scales")


def read_rows(pool: KVPool, slots: Seq[int]) -> Rows:
    """Return what the slots of a pool hold, on the host."""
    at = np.divmod(np.array(slots, np.int32), np.int32(pool.k[0].shape[1]))
    return {name: _bits(np.asarray(_gather(leaf, *at))) for name, leaf in _named(pool).items()}


def write_rows(
    pool: KVPool, rows: Mapping[str, np.ndarray], writes: Seq[tuple[int, int]]
) -> KVPool:
    """Return the pool with each (row, slot) written. Donates: pool.

    Args:
        rows: of every array of the pool, with as many heads as it has.
    """
    order, slots = np.array(writes, np.int32).reshape(-1, 2).T
    at = np.divmod(slots, np.int32(pool.k[0].shape[1]))
    leaves = {
        name: _scatter(leaf, *at, rows[name][order].view(leaf.dtype))
        for name, leaf in _named(pool).items()
    }
    tree = jax.tree.structure(pool)
    return jax.tree.unflatten(tree, leaves.values())


def fit_heads(rows: np.ndarray, num_heads: int) -> np.ndarray | None:
    """Return rows for a pool of so many key/value heads; None if they are of another model.

    A mesh of more devices than heads repeats each head; repeats are equal and are dropped again.
    """
    have = rows.shape[1]
    if num_heads % have == 0:
        return rows.repeat(num_heads // have, axis=1)
    if have % num_heads:
        return None
    kept = rows[:, :: have // num_heads]
    is_repeated = np.array_equal(kept.repeat(have // num_heads, axis=1), rows)
    return kept if is_repeated else None


def _named(pool: KVPool) -> dict[str, Any]:
    """The arrays of a pool by name, in the order of its leaves."""
    return {
        f"{column}.{layer}": leaf
        for column in COLUMNS
        for layer, leaf in enumerate(getattr(pool, column))
    }


def row_shapes(pool: KVPool) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return by array the shape of a row and the dtype that it is kept in."""
    return {
        name: (leaf.shape[2:], _bits_dtype(leaf.dtype).name) for name, leaf in _named(pool).items()
    }


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(_bits_dtype(array.dtype))


def _bits_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype itself, or for what numpy itself does not know an integer of its size."""
    return dtype if dtype.isbuiltin == 1 else np.dtype(f"uint{8 * dtype.itemsize}")


@jax.jit
def _gather(leaf: Any, blocks: Any, offsets: Any) -> Any:
    return leaf[blocks, offsets]


def _scatter(leaf: Any, blocks: np.ndarray, offsets: np.ndarray, values: np.ndarray) -> Any:
    """Write in place, and leave the array as it is laid over its devices."""
    write = partial(jax.jit, donate_argnums=0, out_shardings=leaf.sharding)
    return write(_set)(leaf, blocks, offsets, jnp.asarray(values))


def _set(leaf: Any, blocks: Any, offsets: Any, values: Any) -> Any:
    return leaf.at[blocks, offsets].set(values)
