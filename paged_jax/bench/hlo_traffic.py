"""What the devices of a mesh say to each other, read from a compiled program's text (HLO)."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

KINDS = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")
BITS_OF = {"pred": 8, "bf16": 16}  # the others end in theirs, as f32 and s8
_CALL = re.compile(rf" = (\S+|\(.*?\)) ({'|'.join(KINDS)})(-start)?\(")
_ARRAY = re.compile(r"([a-z]+\d*)[a-z0-9]*\[([\d,]*)\]")


@dataclass(frozen=True)
class Traffic:
    """Operations of one kind.

    Attributes:
        num_bytes: of their results, on each device.
    """

    count: int = 0
    num_bytes: int = 0

    def plus(self, other: "Traffic") -> "Traffic":
        """Return both together."""
        return Traffic(self.count + other.count, self.num_bytes + other.num_bytes)


def collectives(text: str) -> dict[str, Traffic]:
    """Return the collectives of a program by kind; one that is started and awaited counts once."""
    found: dict[str, Traffic] = {}
    for result, kind, start in _CALL.findall(text):
        arrays = [_num_bytes(*each) for each in _ARRAY.findall(result)]
        if start and kind != "all-reduce":  # (operands, results)
            arrays = arrays[len(arrays) // 2 :]
        found[kind] = found.get(kind, Traffic()).plus(Traffic(1, sum(arrays)))
    return found


def added(one: Mapping[str, Traffic], other: Mapping[str, Traffic]) -> dict[str, Traffic]:
    """Return the traffic of two programs together."""
    return {
        kind: one.get(kind, Traffic()).plus(other.get(kind, Traffic()))
        for kind in (*one, *(kind for kind in other if kind not in one))
    }


def _num_bytes(dtype: str, sizes: str) -> int:
    bits = BITS_OF.get(dtype) or int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz"))
    return math.prod(int(size) for size in sizes.split(",") if size) * bits // 8
