"""New values for an engine's parameters, brought into the form that it keeps them in.

Nothing else may change: not the model's shape, not a dtype, so that the compiled programs stay.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from paged_jax.config import MeshShape, ModelConfig, ModelError, OptionError
from paged_jax.models.packed import PackedMatrix, place
from paged_jax.models.params import ModelParams
from paged_jax.models.quantised import QuantisedMatrix


def check_may_update(mesh: MeshShape, num_live: int) -> None:
    """Raise unless parameters can be replaced now.

    Raises:
        OptionError: they are divided among devices.
        RuntimeError: requests are being answered, whose keys and values are of the old ones.
    """
    if mesh.num_devices > 1:
        raise OptionError(
            f"update_params replaces parameters on one device, not on {mesh.num_devices}: leave "
            "out the --...-parallel-size options, or start again with the new model"
        )
    if num_live:
        raise RuntimeError(
            f"{num_live} requests are being answered with the old parameters: let them end or "
            "abort them, then update"
        )


def fitted(given: ModelParams, current: ModelParams, config: ModelConfig) -> ModelParams:
    """Return `given` on the device and packed as `current` is; matrices may be plain or packed.

    A plain matrix is [in, out], and the embedding [vocab, embed].

    Raises:
        ModelError: names the first array that is missing, too many, or of another shape or dtype.
    """
    old, new = _leaves(current), _leaves(given)
    for name in [*old, *new]:
        if name not in new or name not in old:
            raise ModelError(
                f"{name} is {'missing' if name not in new else 'not of this model'}: give the "
                "parameters in the form of engine.params"
            )
    values = [_placed(name, new[name], leaf, config) for name, leaf in old.items()]
    tree = jax.tree.structure(current, is_leaf=_is_matrix)
    return jax.tree.unflatten(tree, values)


def _is_matrix(leaf: object) -> bool:
    return isinstance(leaf, PackedMatrix | QuantisedMatrix)


def _leaves(params: ModelParams) -> Mapping[str, Any]:
    """Every matrix and vector by its path, as in layers[0].w_q."""
    found, _ = jax.tree_util.tree_flatten_with_path(params, is_leaf=_is_matrix)
    return {jax.tree_util.keystr(path).removeprefix("."): leaf for path, leaf in found}


def _placed(name: str, given: Any, current: Any, config: ModelConfig) -> Any:
    """One leaf as the engine keeps it."""
    field = name.rpartition(".")[2]
    is_packed_here = isinstance(current, PackedMatrix) and not _is_matrix(given)
    if not is_packed_here:
        _check_alike(name, given, current)
        return jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), given, current)
    if current.scales is not None:
        raise ModelError(f"{name} must be packed integers, as in engine.params, and not floats")
    shape = (current.inner, current.outer)
    _check(name, given, shape[::-1] if field == "embed" else shape, current.panels.dtype)
    return place(field, np.asarray(given), config)


def _check_alike(name: str, given: Any, current: Any) -> None:
    """Raise ModelError unless both have the same structure, shapes and dtypes."""
    if jax.tree.structure(given) != jax.tree.structure(current):
        raise ModelError(
            f"{name} is a {type(given).__name__} of another form than the {type(current).__name__} "
            "that engine.params has"
        )
    for new, old in zip(jax.tree.leaves(given), jax.tree.leaves(current), strict=True):
        _check(name, new, old.shape, old.dtype)


def _check(name: str, given: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
    have = (tuple(np.shape(given)), np.dtype(getattr(given, "dtype", object)))
    if have != (shape, dtype):
        raise ModelError(
            f"{name} is {have[1]} {list(have[0])}, but must be {dtype} {list(shape)} as in "
            "engine.params"
        )
