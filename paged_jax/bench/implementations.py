"""The implementations of paged attention there are, by name, under their one signature."""

from collections.abc import Callable, Mapping
from functools import partial

import jax

from pallas_kernels import reference, triton

Attention = Callable[..., jax.Array]


def kernels(*, interpret: bool) -> Mapping[str, Attention]:
    """Return the hand-written ones."""
    return {"triton": partial(triton.paged_attention, interpret=interpret)}


def implementations(*, interpret: bool) -> Mapping[str, Attention]:
    """Return all of them."""
    return {**kernels(interpret=interpret), "xla": reference.paged_attention}
