"""An Orbax checkpoint goes into any mesh: nothing of the machine that wrote it is in it."""

import jax
import numpy as np
import pytest

from paged_jax.config import MeshShape
from paged_jax.convert import convert
from paged_jax.device.sharding import make_mesh
from paged_jax.weights.load import load_params, read_config
from paged_jax.weights.source import resolve_model


@pytest.mark.parametrize(("name", "tensor"), [("llama", 8), ("qwen2", 4), ("tied", 3)])
def test_a_checkpoint_is_divided_as_its_safetensors_are(folder, tmp_path, name, tensor) -> None:
    convert(str(folder(name)), tmp_path / "out")
    mesh = make_mesh(MeshShape(tensor=tensor))

    loaded = []
    for path in (folder(name), tmp_path / "out"):
        source = resolve_model(str(path))
        config = read_config(source, dtype="float32", is_divided=True)
        loaded.append(load_params(source, config, mesh=mesh, progress=False))

    one, other = map(jax.tree.leaves, loaded)
    assert [leaf.sharding for leaf in one] == [leaf.sharding for leaf in other]
    assert all(map(np.array_equal, one, other))
