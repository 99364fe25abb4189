"""The platform that is traced for: the mesh's where there is one, and else this machine's."""

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from paged_jax.device import platform
from paged_jax.device.kv_pool import storage_dtype


@pytest.fixture
def gpu_mesh() -> AbstractMesh:
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    return AbstractMesh((1,), ("x",), abstract_device=device)


def test_the_target_is_this_machine_without_a_mesh(monkeypatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert platform.target() == "tpu"


def test_the_target_is_the_device_of_the_mesh_in_context(gpu_mesh) -> None:
    with jax.sharding.use_abstract_mesh(gpu_mesh):
        assert platform.target() == "gpu"


def test_one_function_is_traced_anew_for_another_target(gpu_mesh) -> None:
    targets = []
    traced = jax.jit(lambda x: targets.append(platform.target()) or x)

    traced.trace(1.0)
    with jax.sharding.use_abstract_mesh(gpu_mesh):
        traced.trace(1.0)

    assert targets == ["cpu", "gpu"]


@pytest.mark.parametrize(("kind", "is_nvidia"), [("NVIDIA H200", True), ("AMD MI300X", False)])
def test_a_gpu_of_another_maker_is_not_nvidias(kind, is_nvidia) -> None:
    device = AbstractDevice(device_kind=kind, num_cores=132, platform="gpu")
    mesh = AbstractMesh((1,), ("x",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        assert (platform.target(), platform.is_nvidia()) == ("gpu", is_nvidia)
    assert not platform.is_nvidia()


def test_bfloat16_pools_are_bfloat16_for_a_gpu(gpu_mesh) -> None:
    with jax.sharding.use_abstract_mesh(gpu_mesh):
        assert storage_dtype("bfloat16") == "bfloat16"
