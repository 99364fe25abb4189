"""Which part of which array lies on which device of a mesh, as a table and as an SVG picture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paged_jax.engine.engine import Engine

CELL, LABEL, LINE = 34, 110, 14  # widths and height in the picture, in pixels


@dataclass(frozen=True)
class Placement:
    """Where one array lies.

    Attributes:
        parts: for each device that has some of it the part it has, from 0.0 to 1.0 along the axis
            that is cut.
    """

    name: str
    parts: dict[int, tuple[float, float]]


def placements(engines: Sequence["Engine"]) -> list[Placement]:
    """Return one array of each kind of each layer, over all replicas."""
    found = [list(_arrays(engine)) for engine in engines]
    return [
        Placement(rows[0][0], {k: v for _, leaf in rows for k, v in _parts(leaf).items()})
        for rows in zip(*found, strict=True)
    ]


def _arrays(engine: "Engine") -> Iterator[tuple[str, Any]]:
    params, pool = engine.params, engine.executor.pool
    yield "embedding", params.embed
    for index, layer in enumerate(params.layers):
        yield f"layer {index} w_q", layer.w_q
        yield f"layer {index} w_down", layer.w_down
        yield f"layer {index} keys", pool.k[index]
    yield "final norm", params.final_norm
    if params.unembed is not None:
        yield "head", params.unembed


def _parts(array: Any) -> dict[int, tuple[float, float]]:
    """The part of an array on each of its devices; of a packed matrix that of its values."""
    import jax

    leaf = jax.tree.leaves(array)[0]
    parts = {}
    for device, slices in leaf.sharding.devices_indices_map(leaf.shape).items():
        spans = [
            ((each.start or 0) / size, (size if each.stop is None else each.stop) / size)
            for each, size in zip(slices, leaf.shape, strict=True)
        ]
        parts[device.id] = next((span for span in spans if span != (0.0, 1.0)), (0.0, 1.0))
    return parts


def table(rows: Sequence[Placement]) -> str:
    """Return a line for each array: what each device has of it."""
    devices = sorted({device for row in rows for device in row.parts})
    head = f"{'':<18}" + "".join(f"{f'device {device}':>12}" for device in devices)
    lines = [
        f"{row.name:<18}" + "".join(f"{_cell(row.parts.get(device)):>12}" for device in devices)
        for row in rows
    ]
    return "\n".join([head, *lines])


def _cell(part: tuple[float, float] | None) -> str:
    if part is None:
        return "-"
    return "all" if part == (0.0, 1.0) else f"{part[0]:.2f}-{part[1]:.2f}"


def picture(layouts: dict[str, Sequence[Placement]]) -> str:
    """Return the layouts one below the other as SVG: of a box the dark part is there."""
    parts, top, width = list[str](), LINE, 0
    for name, rows in layouts.items():
        devices = sorted({device for row in rows for device in row.parts})
        width = max(width, LABEL + CELL * len(devices) + LINE)
        parts += _panel(name, rows, devices, top)
        top += LINE * (len(rows) + 3)
    size = f'width="{width}" height="{top}"'
    style = "<style>text{font:10px sans-serif;fill:#555}</style>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{"".join(parts)}</svg>\n'


def _panel(name: str, rows: Sequence[Placement], devices: list[int], top: int) -> Iterator[str]:
    yield _text(2, top, f"mesh {name}")
    for column, device in enumerate(devices):
        yield _text(LABEL + CELL * column, top + LINE, str(device))
    for index, row in enumerate(rows):
        y = top + LINE * (index + 2)
        yield _text(2, y, row.name)
        for column, device in enumerate(devices):
            x, inner = LABEL + CELL * column, CELL - 4
            yield _box(x, y, inner, "#eee")
            start, stop = row.parts.get(device, (0.0, 0.0))
            if stop > start:
                yield _box(x + inner * start, y, inner * (stop - start), "#379")


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(text)}</text>'


def _box(x: float, y: float, width: float, colour: str) -> str:
    top, height = y - LINE + 5, LINE - 3
    return f'<rect x="{x:g}" y="{top}" width="{width:g}" height="{height}" fill="{colour}"/>'
