"""The implementations of paged attention there are, by name, under their one signature."""

from collections.abc import Callable, Mapping
from functools import partial

import jax

from pallas_kernels import mosaic, reference, triton

Attention = Callable[..., jax.Array]


def kernels(*, interpret: bool) -> Mapping[str, Attention]:
    """Return the hand-written ones; on a CPU without `mosaic`, whose interpreter is too slow."""
    if interpret:
        return {"triton": partial(triton.paged_attention, interpret=True)}
    return {"triton": triton.paged_attention, "mosaic": mosaic.paged_attention}


def implementations(*, interpret: bool) -> Mapping[str, Attention]:
    """Return all of them."""
    return {**kernels(interpret=interpret), "xla": reference.paged_attention}
