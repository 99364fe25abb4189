"""What a benchmark is made of: cases that measure one thing, and what they find."""

from collections.abc import Callable
from dataclasses import dataclass

from paged_jax.bench.timing import Timing


@dataclass(frozen=True)
class Measurement:
    """How long something took, and the least it had to do.

    Attributes:
        num_bytes: memory traffic that no implementation can avoid.
        num_flops: floating point operations, likewise.
        compile_s: lowering and compiling, tuning included.
    """

    timing: Timing
    num_bytes: float
    num_flops: float
    compile_s: float


@dataclass(frozen=True)
class Accuracy:
    """The largest error among outputs, and what their dtype explains."""

    max_error: float
    tolerance: float

    @property
    def is_right(self) -> bool:
        """Whether the error is explained; a NaN never is."""
        return self.max_error <= self.tolerance


class LeftOut(Exception):
    """A case cannot be measured here, through no fault of its own; the message says why."""


@dataclass(frozen=True)
class Case:
    """One thing to measure; `run` makes its inputs, so that a case not run costs nothing."""

    name: str
    dtype: str
    run: Callable[[], Measurement | Accuracy]
