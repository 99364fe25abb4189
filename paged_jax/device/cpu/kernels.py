"""The compiled kernels as JAX operations: loading, registration, and the call.

Where they cannot be had, one line in the log says so, and everything runs on XLA.
"""

import ctypes
import functools
import logging
import os
from collections.abc import Mapping, Sequence

import jax
from jax import Array

from paged_jax.device import platform
from paged_jax.device.cpu import build

SWITCH = "PAGED_JAX_CPU_KERNELS"
PREFIX = "paged_jax_"
TARGETS = {  # operation: the symbol of its handler in csrc/
    "add_norm": "AddNorm",
    "argmax": "Argmax",
    "likeliest": "Likeliest",
    "matmul": "Matmul",
    "norm": "Norm",
    "paged_attention": "PagedAttention",
    "read_columns": "ReadColumns",
    "rotate_write": "RotateWrite",
    "top_k": "TopK",
    "write_kv": "WriteKv",
}

logger = logging.getLogger("paged_jax")


def are_usable() -> bool:
    """Whether what is traced now may call the kernels: on one CPU, built, and not switched off by
    PAGED_JAX_CPU_KERNELS=off.
    """
    is_off = os.environ.get(SWITCH, "on") == "off"
    is_one_cpu = platform.target() == "cpu" and jax.sharding.get_abstract_mesh().size <= 1
    return is_one_cpu and not is_off and library() is not None


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the kernels, their operations registered; None where they cannot be built."""
    try:
        kernels = ctypes.CDLL(str(build.library()))
    except (build.BuildError, OSError) as error:
        logger.warning("The CPU kernels are not used, steps run slower on XLA alone: %s", error)
        return None
    for name, symbol in TARGETS.items():
        handler = jax.ffi.pycapsule(getattr(kernels, symbol))
        jax.ffi.register_ffi_target(PREFIX + name, handler, platform="cpu")
    kernels.has_pair_products.restype = ctypes.c_bool
    return kernels


def loaded() -> ctypes.CDLL:
    """Return the kernels, which are known to be there."""
    kernels = library()
    assert kernels is not None, "matrices are packed only where there are kernels"
    return kernels


def call(
    name: str,
    results: Sequence[jax.ShapeDtypeStruct],
    arrays: Sequence[Array],
    *,
    aliases: Mapping[int, int] | None = None,
    **attributes: object,
) -> list[Array]:
    """Call an operation of TARGETS.

    Args:
        aliases: which argument each result may overwrite, argument: result.
        attributes: numpy scalars, booleans or strings that the handler takes.
    """
    run = jax.ffi.ffi_call(PREFIX + name, list(results), input_output_aliases=dict(aliases or {}))
    return list(run(*arrays, **attributes))
