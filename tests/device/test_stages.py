"""How layers are shared out among stages."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from tiny import tiny_model_config

from paged_jax.config import MeshShape, OptionError
from paged_jax.device.sharding import AXES, make_mesh
from paged_jax.device.stages import Stage, cut_into_stages
from paged_jax.engine.resolved import check_stages


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "sizes"), [(4, 2, [2, 2]), (5, 3, [2, 2, 1]), (3, 3, [1, 1, 1])]
)
def test_the_first_stages_have_what_does_not_divide(num_layers, num_stages, sizes) -> None:
    devices = np.array(jax.devices() * num_stages).reshape(1, num_stages, 1)

    stages = cut_into_stages(Mesh(devices, AXES), num_layers)

    assert [len(stage.layers) for stage in stages] == sizes
    assert [layer for stage in stages for layer in stage.layers] == list(range(num_layers))


def test_without_a_mesh_one_stage_has_all() -> None:
    assert cut_into_stages(None, 7) == (Stage(None, range(7)),)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(OptionError, match="-size 3 exceeds the model's 2 layers: choose at most 2"):
        check_stages(tiny_model_config(), 3)


def test_more_devices_than_there_are_name_the_options() -> None:
    with pytest.raises(OptionError, match=r"^--data-parallel-size 8 x --tensor-parallel-size 4 ne"):
        make_mesh(MeshShape(data=8, tensor=4))
