"""Meshes: which devices there are, how arrays are laid over them, and how a function runs on them.

On several devices a function runs inside one `shard_map`: every device sees its own part of the
weights and of the KV pool, and the only traffic is what is asked for here. `tensor_size` tells code
that it is on such a device, as `platform.target` tells the platform: by the mesh in context. On one
device there is no mesh, and nothing here leaves a trace in a program.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from paged_jax.config import MeshShape, OptionError

DATA, STAGE, TENSOR = AXES = ("data", "stage", "tensor")
REPLICATED = PartitionSpec()

T = TypeVar("T")
Part = tuple[slice, ...]  # one slice with start and stop for each axis


@runtime_checkable
class Cuttable(Protocol):
    """A host array, or what reads one: `array[part]` is that part of it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole."""
        ...

    def __getitem__(self, part: Part, /) -> np.ndarray:
        """Return a part."""
        ...


@dataclass(frozen=True)
class ShardingRules:
    """The axis of the mesh that each axis of an array is cut along; None repeats it everywhere.

    Attributes:
        heads: query heads, head by head. kv_heads: likewise of keys and values.
        mlp: the inner size of the MLP.
    """

    heads: str | None = TENSOR
    kv_heads: str | None = TENSOR
    mlp: str | None = TENSOR
    vocab: str | None = TENSOR
    embed: str | None = None
    head_dim: str | None = None
    blocks: str | None = None
    block_size: str | None = None

    def spec(self, *axes: str) -> PartitionSpec:
        """Return how an array of these axes is cut."""
        return PartitionSpec(*(getattr(self, axis) for axis in axes))


RULES = ShardingRules()
POOL = RULES.spec("blocks", "block_size", "kv_heads")  # of every leaf of a KVPool


def device_grid(shape: MeshShape) -> np.ndarray:
    """Return the first devices as [data stage tensor].

    Raises:
        OptionError: there are not as many devices.
    """
    wanted, devices = shape.num_devices, jax.devices()
    if wanted > len(devices):
        sizes = {"data": shape.data, "pipeline": shape.stage, "tensor": shape.tensor}
        given = [f"--{name}-parallel-size {size}" for name, size in sizes.items() if size > 1]
        raise OptionError(
            f"{' x '.join(given)} needs {wanted} devices and JAX finds {len(devices)}: "
            f"choose at most {len(devices)} together, or make more on a CPU by "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={wanted}"
        )
    return np.array(devices[:wanted]).reshape(shape.data, shape.stage, shape.tensor)


def make_mesh(shape: MeshShape) -> Mesh | None:
    """Return the mesh of one replica, [1 stage tensor]; None if the one device there is is all.

    Raises:
        OptionError: there are not enough devices for all replicas.
    """
    if shape.num_devices == 1:
        return None
    return Mesh(device_grid(shape)[shape.replica][None], AXES)


def jit_on(
    mesh: Mesh | None,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    *,
    outs: Any,
    donate: tuple[int, ...] = (),
) -> Any:
    """Jit `function` for `arguments`, and for a mesh as one shard_map over all of it.

    Args:
        arguments: placed, or abstract with a sharding; what has none is on every device.
        outs: how results are cut, a prefix tree of PartitionSpecs.
        donate: which arguments may be overwritten.
    """
    if mesh is None:
        return jax.jit(function, donate_argnums=donate)
    ins = jax.tree.map(spec_of, arguments)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)
    place = partial(jax.tree.map, partial(NamedSharding, mesh))
    return jax.jit(
        mapped, in_shardings=place(ins), out_shardings=place(outs), donate_argnums=donate
    )


def spec_of(leaf: Any) -> PartitionSpec:
    """Return how an array is cut; a host array is on every device."""
    sharding = getattr(leaf, "sharding", None)
    return sharding.spec if isinstance(sharding, NamedSharding) else REPLICATED


def struct_on(
    mesh: Mesh | None, shape: tuple[int, ...], dtype: np.dtype, spec: PartitionSpec
) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of an array, cut by `spec` where there is a mesh."""
    sharding = None if mesh is None else NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def make_on(mesh: Mesh | None, make: Callable[[], T], spec: PartitionSpec) -> T:
    """Return the arrays of `make`, each device making its own part."""
    if mesh is None:
        return make()
    return jax.jit(make, out_shardings=NamedSharding(mesh, spec))()


def put(array: Cuttable, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    """Place a host array, each part straight on its own device; other hosts' parts are not asked
    for.
    """
    part = lambda index: array[_bounded(index, array.shape)]  # noqa: E731
    return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), part)


def whole(shape: tuple[int, ...]) -> Part:
    """Return the part that is all of an array."""
    return tuple(slice(0, size) for size in shape)


def _bounded(index: Part, shape: tuple[int, ...]) -> Part:
    """Give every slice its start and stop."""
    return tuple(slice(*cut.indices(size)) for cut, size in zip(index, shape, strict=True))


def copied_to_replica(tree: T, shape: MeshShape) -> T:
    """Copy the first replica's arrays to the devices of another, cut alike."""
    grid = device_grid(shape)
    twins = dict(zip(grid[0].flat, grid[shape.replica].flat, strict=True))

    def copy(leaf: jax.Array) -> jax.Array:
        sharding = leaf.sharding
        assert isinstance(sharding, NamedSharding), "one of several replicas has no mesh"
        mesh = sharding.mesh
        assert isinstance(mesh, Mesh), "an array lies on no devices"
        devices = np.array([twins[device] for device in mesh.devices.flat])
        twin = Mesh(devices.reshape(mesh.devices.shape), mesh.axis_names)
        return jax.device_put(leaf, NamedSharding(twin, sharding.spec))

    return jax.tree.map(copy, tree)


def device_bytes_of(tree: Any) -> int:
    """Return the bytes that arrays take on each device; on the fullest one if they differ."""
    taken: Counter[Any] = Counter()
    for leaf in jax.tree.leaves(tree):
        part = int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize
        taken.update(dict.fromkeys(leaf.sharding.device_set, part))
    return max(taken.values(), default=0)


def tensor_size() -> int:
    """Return how many devices share the layer being traced; 1 outside of `jit_on`'s mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[TENSOR] if TENSOR in mesh.manual_axes else 1


def tensor_index() -> Int[Array, ""]:
    """Return which of them this device is."""
    return lax.axis_index(TENSOR)


def sum_over_tensor(x: Float[Array, "rows embed"]) -> Float[Array, "rows embed"]:
    """Add up what each device has of a sum: one all-reduce; nothing on one device."""
    return lax.psum(x, TENSOR) if tensor_size() > 1 else x


def gather_rows(
    table: Float[Array, "vocab embed"], ids: Int[Array, " tokens"]
) -> Float[Array, "tokens embed"]:
    """Return rows of a table whose rows are divided among the devices: one all-reduce."""
    if tensor_size() == 1:
        return table[ids]
    mine = ids - tensor_index() * table.shape[0]
    is_mine = (mine >= 0) & (mine < table.shape[0])
    rows = table[jnp.where(is_mine, mine, 0)]
    return lax.psum(jnp.where(is_mine[:, None], rows, jnp.zeros((), rows.dtype)), TENSOR)
