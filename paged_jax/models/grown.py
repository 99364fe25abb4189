"""Arrays that every device must have as much of: heads are repeated, the vocabulary is padded.

Nothing is made larger as a whole: a part is cut out of the array as it is, then grown.
"""

from dataclasses import dataclass

import numpy as np

from paged_jax.device.sharding import Cuttable, Part


@dataclass(frozen=True)
class RepeatedHeads:
    """An array whose last axis is `num_heads` heads, each of them `repeats` times in a row."""

    source: Cuttable
    num_heads: int
    repeats: int

    @property
    def shape(self) -> tuple[int, ...]:
        """With the repeats."""
        return (*self.source.shape[:-1], self.source.shape[-1] * self.repeats)

    def __getitem__(self, part: Part) -> np.ndarray:
        """Return a part whose borders are borders of heads."""
        *rest, last = part
        size = self.source.shape[-1] // self.num_heads
        heads = np.arange(last.start // size, last.stop // size) // self.repeats
        first, end = int(heads[0]), int(heads[-1]) + 1
        held = self.source[*rest, slice(first * size, end * size)]
        grouped = held.reshape(*held.shape[:-1], end - first, size)
        return grouped[..., heads - first, :].reshape(*held.shape[:-1], -1)


@dataclass(frozen=True)
class Padded:
    """An array with zeros after its end, so that `axis` is of `size`."""

    source: Cuttable
    axis: int
    size: int

    @property
    def shape(self) -> tuple[int, ...]:
        """With the zeros."""
        return tuple(
            self.size if axis == self.axis else size for axis, size in enumerate(self.source.shape)
        )

    def __getitem__(self, part: Part) -> np.ndarray:
        """Return a part."""
        wanted, end = part[self.axis], self.source.shape[self.axis]
        inside = slice(min(wanted.start, end), min(wanted.stop, end))
        held = self.source[*part[: self.axis], inside, *part[self.axis + 1 :]]
        short = (wanted.stop - wanted.start) - held.shape[self.axis]
        widths = [(0, short if axis == self.axis else 0) for axis in range(held.ndim)]
        return np.pad(held, widths) if short else held
