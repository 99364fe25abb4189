"""`@pytree`: a frozen dataclass whose fields are JAX leaves or subtrees.

JAX rebuilds such classes from things that are not arrays (shardings, shapes, tracers), so they are
exempt from the run-time shape checks of the tests; their field annotations are documentation.
"""

from typing import TypeVar, dataclass_transform

from flax import struct

T = TypeVar("T", bound=type)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def pytree(cls: T) -> T:
    """Make `cls` a frozen keyword-only dataclass registered as a pytree node."""
    cls.__no_type_check__ = True  # type: ignore[attr-defined]
    return struct.dataclass(cls, kw_only=True)  # type: ignore[return-value]
