"""Which platform the programs being traced are for.

That is the platform of the mesh in context, where there is one, and else JAX's default. A compile
check on a machine without a GPU traces inside `jax.sharding.use_abstract_mesh(...)` of a GPU's
mesh; JAX keys its trace caches by that mesh, so the two kinds of programs never mix.
"""

import jax


def target() -> str:
    """Return "cpu", "gpu" (AMD's too) or "tpu"."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def device_kind() -> str:
    """Return the device's name, as its maker writes it."""
    device = jax.sharding.get_abstract_mesh().abstract_device or jax.local_devices()[0]
    return device.device_kind


def is_nvidia() -> bool:
    """Whether the device runs what is compiled for NVIDIA's GPUs."""
    return "NVIDIA" in device_kind()
