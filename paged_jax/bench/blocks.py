"""`bench blocks`: what a block size costs and gains, from 1 to 256 tokens, on three workloads.

Waste, prefix hits and tables come from simulation, which is exact for them; the time of decode
attention is measured on this device. The waste to expect is half a block a sequence:
(B - 1) / 2 slots beside the tokens it holds. Set beside it: Kwon et al. 2023, arXiv:2309.06180,
section 7.2, found 16 to 128 best for ShareGPT's long sequences and 16 to 32 for Alpaca's short
ones, where larger blocks outgrow the sequences, and made 16 the default.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from paged_jax.bench.machine import machine_facts
from paged_jax.bench.report import append_json
from paged_jax.bench.step import numbers
from paged_jax.host.arrivals import Load
from paged_jax.host.step_cost import COSTS
from paged_jax.host.summary import summarise
from paged_jax.host.system import System

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WORKLOADS = {
    "short chat": Load(num_requests=96, prompt_lens=(16, 128), output_lens=(16, 128)),
    "long documents": Load(num_requests=24, prompt_lens=(1024, 3072), output_lens=(64, 256)),
    "shared prefix": Load(
        num_requests=48, rate=20.0, prompt_lens=(16, 64), output_lens=(16, 64), prefix_len=1000
    ),
}
SYSTEM = System(pool_tokens=131_072, max_seqs=64, max_tokens_per_step=2048, max_model_len=4096)
ENTRY_BYTES = 4
MOST_WASTE = 0.04  # what the paper states of its own


@dataclass(frozen=True)
class BlockFigures:
    """One block size under one workload.

    Attributes:
        waste: measured share of allocated slots that hold no token.
        expected_waste: by half a block for each running sequence.
        hit_rate: prompt tokens found in the prefix cache, whole blocks only.
        token_hit_rate: the same if every token could be shared, as with blocks of one.
        table_bytes: of all block tables, mean over the steps.
    """

    workload: str
    block_size: int
    waste: float
    expected_waste: float
    hit_rate: float
    token_hit_rate: float
    table_bytes: float


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = _parser().parse_args(arguments)
    sizes = numbers(options.sizes)
    figures = measure_blocks(sizes)
    times = {} if options.no_kernels else kernel_seconds(sizes, is_quick=options.quick)
    print("\n".join([*rows_of(figures), *kernel_rows(times), *best_rows(figures)]))
    if options.out:
        for one in figures:
            append_json(options.out, {**asdict(one), **machine_facts()})
        append_json(options.out, {"decode_s": times, **machine_facts()})
    if options.picture:
        draw_picture(figures, times, options.picture)


def measure_blocks(sizes: Sequence[int] = SIZES) -> list[BlockFigures]:
    """Simulate every workload with every block size."""
    found: list[BlockFigures] = []
    for name, load in WORKLOADS.items():
        by_token = _simulate(name, load, 1, token_hit_rate=None)
        found += [_simulate(name, load, size, token_hit_rate=by_token.hit_rate) for size in sizes]
    return found


def _simulate(
    name: str, load: Load, block_size: int, *, token_hit_rate: float | None
) -> BlockFigures:
    system = replace(SYSTEM, block_size=block_size)
    run = system.simulation(load.requests(), COSTS["h200-8b-floor"]).run()
    figures = summarise(run.steps, run.requests, block_size=block_size)
    filled = [step for step in run.steps if step.usage.num_used]
    gaps = [step.num_running * (block_size - 1) / 2 for step in filled]
    expected = [gap / (step.usage.num_tokens + gap) for gap, step in zip(gaps, filled, strict=True)]
    return BlockFigures(
        workload=name,
        block_size=block_size,
        waste=figures.waste,
        expected_waste=fmean(expected),
        hit_rate=figures.hit_rate,
        token_hit_rate=figures.hit_rate if token_hit_rate is None else token_hit_rate,
        table_bytes=ENTRY_BYTES * fmean(step.usage.num_used for step in filled),
    )


def kernel_seconds(sizes: Sequence[int], *, is_quick: bool = False) -> dict[int, float]:
    """Measure decode attention of one layer of SmolLM2's shape by block size, on this device."""
    from paged_jax.bench.kernel_cases import decode_seconds  # here: it loads jax

    return {size: decode_seconds(size, is_quick=is_quick) for size in sizes}


def largest_under(figures: Sequence[BlockFigures], most: float = MOST_WASTE) -> dict[str, int]:
    """Return for each workload the largest block size that wastes at most so much."""
    return {
        name: max(
            (f.block_size for f in figures if f.workload == name and f.waste <= most), default=0
        )
        for name in WORKLOADS
    }


def rows_of(figures: Sequence[BlockFigures]) -> list[str]:
    """Return the table."""
    head = ("workload", "block", "waste %", "expected %", "hits %", "by token %", "tables KB")
    lines = [f"{head[0]:<16}" + "".join(f"{word:>12}" for word in head[1:])]
    for f in figures:
        shares = (f.waste, f.expected_waste, f.hit_rate, f.token_hit_rate)
        cells = "".join(f"{100 * share:>12.2f}" for share in shares)
        lines.append(f"{f.workload:<16}{f.block_size:>12}{cells}{f.table_bytes / 1e3:>12.2f}")
    return lines


def kernel_rows(times: dict[int, float]) -> list[str]:
    """Return the attention times as lines."""
    return [f"decode attention, blocks of {size}: {1e6 * s:.0f} us" for size, s in times.items()]


def best_rows(figures: Sequence[BlockFigures]) -> list[str]:
    """Return what the waste allows."""
    return [
        f"{name}: at most {MOST_WASTE:.0%} is wasted up to blocks of {size}"
        for name, size in largest_under(figures).items()
    ]


def draw_picture(figures: Sequence[BlockFigures], times: dict[int, float], path: Path) -> None:
    """Draw waste, hits, tables and attention against the block size."""
    from paged_jax.plots import draw_against, panels

    def of(name: str, key: str, scale: float = 100.0) -> list[float]:
        return [scale * getattr(f, key) for f in figures if f.workload == name]

    sizes = sorted({f.block_size for f in figures})
    waste = {name: of(name, "waste") for name in WORKLOADS}
    waste |= {f"{name}, formula": of(name, "expected_waste") for name in WORKLOADS}
    hits = {name: of(name, "hit_rate") for name in WORKLOADS}
    tables = {name: of(name, "table_bytes", 1e-3) for name in WORKLOADS}
    figure, axes = panels(4 if times else 3, width=3.6)
    x = "tokens per block"
    draw_against(axes[0], sizes, waste, xlabel=x, ylabel="% of allocated slots empty")
    draw_against(axes[1], sizes, hits, xlabel=x, ylabel="% of prompt tokens found")
    draw_against(axes[2], sizes, tables, xlabel=x, ylabel="KB of block tables")
    if times:
        us = {"64 sequences x 256": [1e6 * s for s in times.values()]}
        draw_against(axes[3], list(times), us, xlabel=x, ylabel="us of decode attention")
    figure.savefig(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.bench blocks", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    listed = ",".join(map(str, SIZES))
    add("--sizes", default=listed, metavar="LIST", help="(%(default)s)")
    add("--no-kernels", action="store_true", help="simulate only")
    add("--quick", action="store_true", help="tiny shapes for the kernel, to see that all runs")
    add("--out", type=Path, metavar="FILE", help="append every figure as a line of JSON")
    add("--picture", type=Path, metavar="FILE", help="as .svg or .png")
    return parser
