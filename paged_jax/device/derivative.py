"""Derivatives of what is computed by kernels: those of the plain formulas that define it."""

from collections.abc import Callable
from typing import Any

import jax


def with_derivative(kernel: Callable[..., Any], definition: Callable[..., Any]) -> Any:
    """Return `kernel`, to be differentiated in reverse as `definition` would be at the same place.

    Both take the same pytrees of arrays and compute the same, but for rounding. Nothing of the
    definition is computed unless somebody asks for a derivative; of whole numbers there is none.
    """

    def forward(*arrays: Any) -> tuple[Any, tuple[Any, ...]]:
        return kernel(*arrays), arrays

    def backward(arrays: tuple[Any, ...], cotangent: Any) -> tuple[Any, ...]:
        return jax.vjp(definition, *arrays)[1](cotangent)

    run = jax.custom_vjp(lambda *arrays: kernel(*arrays))
    run.defvjp(forward, backward)
    return run
