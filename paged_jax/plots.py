"""Pictures of runs, block maps and studies, for notebooks and benchmarks.

Needs matplotlib (the extra `notebooks`). Every function draws on axes it is given.
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from paged_jax.config import OptionError
from paged_jax.host.block_map import BlockMap, block_map
from paged_jax.host.replay import Recording, Replay
from paged_jax.host.trace import StepRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = 20
MAP_COLUMNS = 16


def panels(count: int, *, width: float = 4.2, height: float = 3.0) -> "tuple[Figure, list[Axes]]":
    """Return a figure of `count` panels beside each other; sizes are those of one, in inches.

    Raises:
        OptionError: matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise OptionError("pictures need matplotlib: pip install 'paged_jax[notebooks]'") from error
    figure, axes = pyplot.subplots(
        1, count, figsize=(width * count, height), layout="constrained", squeeze=False, dpi=72
    )
    return figure, list(axes[0])


def draw_slots(axes: "Axes", steps: Sequence[StepRecord], block_size: int) -> None:
    """Draw over time how many slots are allocated and how many of them hold a token."""
    times_s = [step.start_s - steps[0].start_s for step in steps]
    total = steps[0].usage.num_blocks * block_size
    allocated = [100 * step.usage.num_used * block_size / total for step in steps]
    held = [100 * step.usage.num_tokens / total for step in steps]
    axes.fill_between(times_s, allocated, color="0.8", label="allocated")
    axes.fill_between(times_s, held, color="tab:blue", alpha=0.7, label="hold a token")
    axes.set(xlabel="seconds", ylabel="% of the pool's slots", ylim=(0, 100))
    axes.legend(loc="lower right", fontsize=8)


def draw_running(axes: "Axes", steps: Sequence[StepRecord]) -> None:
    """Draw over time how many sequences run and how many wait."""
    times_s = [step.start_s - steps[0].start_s for step in steps]
    axes.step(times_s, [step.num_running for step in steps], where="post", label="running")
    axes.step(times_s, [step.num_waiting for step in steps], where="post", label="waiting")
    axes.set(xlabel="seconds", ylabel="sequences", ylim=(0, None))
    axes.legend(fontsize=8)


def draw_bars(axes: "Axes", values: Mapping[str, float], *, label: str) -> None:
    """Draw a horizontal bar for each name, the first on top, with its value."""
    names = list(values)[::-1]
    bars = axes.barh(names, [values[name] for name in names], color="tab:blue")
    axes.bar_label(bars, fmt="%.3g", padding=3, fontsize=8)
    axes.set(xlabel=label, xlim=(0, 1.18 * max(values.values())))


def draw_against(
    axes: "Axes", xs: Sequence[float], series: Mapping[str, Sequence[float]], **labels: object
) -> None:
    """Draw series against a common axis of powers of two; `labels` go to `axes.set`."""
    for name, values in series.items():
        axes.plot(xs, values, "--" if name.endswith("formula") else "o-", ms=4, label=name)
    axes.set_xscale("log", base=2)
    axes.set(**{"ylim": (0, None), **labels})  # pyright: ignore[reportArgumentType]
    axes.legend(fontsize=8)


def draw_blocks(axes: "Axes", blocks: BlockMap, owners: Sequence[str]) -> None:
    """Draw a pool as a grid: a colour for each owner, white free, grey cached, a dot for shared."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    axes.clear()
    states = zip(blocks.refs, blocks.cached, blocks.owners, strict=True)
    for index, (refs, is_cached, owner) in enumerate(states):
        row, column = divmod(index, MAP_COLUMNS)
        colour = (0.8, 0.8, 0.8) if is_cached else (1.0, 1.0, 1.0)
        if owner >= 0:
            name = blocks.sequences[owner].request_id
            colour = colormaps["tab20"](owners.index(name) % COLOURS)
        axes.add_patch(Rectangle((column, row), 0.92, 0.92, facecolor=colour, edgecolor="0.6"))
        if refs > 1:
            axes.plot(column + 0.46, row + 0.46, "ko", ms=5)
    num_rows = -(-len(blocks.refs) // MAP_COLUMNS)
    axes.set(xlim=(-0.1, MAP_COLUMNS), ylim=(num_rows, -0.1), xticks=[], yticks=[], aspect="equal")


def animated_blocks(recording: Recording, *, frame_ms: int = 250) -> bytes:
    """Return a recorded run's pool, step after step, as an animated GIF."""
    from PIL import Image

    replay = Replay(recording)
    owners = [request.id for request in recording.requests()]
    figure, (axes,) = panels(1, width=4.2, height=2.0)
    frames: list[Image.Image] = []
    for number, _ in enumerate(replay.steps()):
        draw_blocks(axes, block_map(replay.scheduler), owners)
        running = replay.scheduler.num_running
        axes.set_title(f"step {number}: {running} running", fontsize=9, loc="left")
        picture = BytesIO()
        figure.savefig(picture, format="png", dpi=72)
        frames.append(Image.open(picture).convert("P", palette=Image.Palette.ADAPTIVE))
    whole = BytesIO()
    frames[0].save(whole, "gif", save_all=True, append_images=frames[1:], duration=frame_ms, loop=0)
    return whole.getvalue()
