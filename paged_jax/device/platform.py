"""Which platform the programs being traced are for.

That is the platform of the mesh in context, where there is one, and else JAX's default. A compile
check on a machine without a GPU traces inside `jax.sharding.use_abstract_mesh(...)` of a GPU's
mesh; JAX keys its trace caches by that mesh, so the two kinds of programs never mix.
"""

import jax


def target() -> str:
    """Return "cpu", "gpu" or "tpu"."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform
