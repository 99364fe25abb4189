"""Stages of a pipeline: a mesh cut along its stage axis, and the layers that each part holds.

A stage runs its layers on devices of its own and hands the hidden states to the next. Where there
is no such axis to cut, one stage has all the layers.
"""

from dataclasses import dataclass
from itertools import accumulate

from jax.sharding import Mesh

from paged_jax.device.sharding import AXES, STAGE


@dataclass(frozen=True)
class Stage:
    """A run of layers.

    Attributes:
        mesh: its devices; None is the one there is.
        layers: their indices in the model.
    """

    mesh: Mesh | None
    layers: range


def cut_into_stages(mesh: Mesh | None, num_layers: int) -> tuple[Stage, ...]:
    """Return the stages in order; where layers do not divide evenly the first have one more."""
    num_stages = 1 if mesh is None else mesh.shape[STAGE]
    if mesh is None or num_stages == 1:
        return (Stage(mesh, range(num_layers)),)
    assert num_stages <= num_layers, "a stage without a layer"
    sizes = [num_layers // num_stages + (i < num_layers % num_stages) for i in range(num_stages)]
    ends = list(accumulate(sizes))
    return tuple(
        Stage(Mesh(mesh.devices[:, i : i + 1], AXES), range(end - sizes[i], end))
        for i, end in enumerate(ends)
    )
