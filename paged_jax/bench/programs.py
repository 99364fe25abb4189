"""`bench programs`: what each compiled program of an engine needs, and its least time.

Memory is what XLA reports. Operations and bytes are counted from the model's shapes, since XLA does
not see into kernels: matrix products, weights read once, keys and values written. What attention
adds grows with the context and is left out, so the least time (the roofline of Williams et al.,
2009) is that of a step at context 0.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paged_jax.bench.machine import machine_facts
from paged_jax.bench.models import num_layer_weights
from paged_jax.bench.report import write_json
from paged_jax.config import OptionError
from paged_jax.flags import add_engine_flags, read_engine_args

if TYPE_CHECKING:
    from paged_jax.engine.engine import Engine

MIB = 1 << 20
HEAD = ("program", "compile", "arguments", "in place", "temporary", "products", "moved", "least")


@dataclass(frozen=True)
class ProgramReport:
    """One program; of a mesh, all devices together but for the memory, which is each device's.

    Attributes:
        name: with its padded size, as "backbone 64".
        compile_s: from lowered to loaded; little where the compilation cache had it.
        in_place_bytes: of arguments that are updated in place.
        temporary_bytes: beside arguments and outputs.
        num_flops: of its matrix products.
        moved_bytes: weights, and keys and values written.
    """

    name: str
    compile_s: float
    argument_bytes: int
    in_place_bytes: int
    temporary_bytes: int
    num_flops: int
    moved_bytes: int

    def least_s(self, flops_per_s: float, bytes_per_s: float) -> float:
        """Return the time a device of these rates needs at least."""
        return max(self.num_flops / flops_per_s, self.moved_bytes / bytes_per_s)


def main(arguments: list[str]) -> None:
    """Run the command."""
    from paged_jax.build import build_engine  # here, so that --help does not wait for jax

    options = _parser().parse_args(arguments)
    args = read_engine_args(options)
    if args.pipeline_parallel_size > 1:
        raise OptionError(
            "bench programs counts the work of whole backbones: leave out "
            f"--pipeline-parallel-size {args.pipeline_parallel_size}"
        )
    engine = build_engine(args)
    try:
        reports = program_reports(engine)
    finally:
        engine.close()
    rates = (1e9 * options.gflops, 1e9 * options.gb_per_s)
    print(table(reports, rates))
    if options.output_json:
        records = [{**asdict(each), "least_s": each.least_s(*rates)} for each in reports]
        write_json(options.output_json, {"programs": records, **machine_facts()})


def program_reports(engine: "Engine") -> list[ProgramReport]:
    """Return a report of every program the engine has compiled, by name and size."""
    return [_report(engine, key) for key in sorted(engine.executor.programs.compile_seconds)]


def table(reports: Sequence[ProgramReport], rates: tuple[float, float]) -> str:
    """Return the reports as text, a line each.

    Args:
        rates: what the least time is taken of, in operations and bytes a second.
    """
    rows = [HEAD, *(_cells(report, rates) for report in reports)]
    return "\n".join(f"{row[0]:<16}" + "".join(f"{cell:>13}" for cell in row[1:]) for row in rows)


def _report(engine: "Engine", key: tuple[str, int]) -> ProgramReport:
    memory = engine.executor.programs.memory(key)
    flops, moved = _work(engine, key)
    return ProgramReport(
        name=f"{key[0]} {key[1]}",
        compile_s=engine.executor.programs.compile_seconds[key],
        argument_bytes=memory.argument_size_in_bytes,
        in_place_bytes=memory.alias_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        num_flops=flops,
        moved_bytes=moved,
    )


def _work(engine: "Engine", key: tuple[str, int]) -> tuple[int, int]:
    """Operations of the products, and bytes of weights and of keys and values."""
    import jax

    name, size = key
    model, pool_bytes = engine.config.model, engine.executor.pool.num_bytes
    slots = engine.config.cache.num_blocks * engine.config.cache.block_size
    weights = lambda tree: sum(leaf.nbytes for leaf in jax.tree.leaves(tree))  # noqa: E731
    if name == "copy":
        return 0, 2 * size * pool_bytes // engine.config.cache.num_blocks
    if name == "backbone":
        written = size * pool_bytes // slots
        return 2 * size * num_layer_weights(model), weights(engine.params.layers) + written
    return 2 * size * model.embed_dim * model.vocab_size, weights(engine.params.head)


def _cells(report: ProgramReport, rates: tuple[float, float]) -> tuple[str, ...]:
    return (
        report.name,
        f"{report.compile_s:.2f} s",
        f"{report.argument_bytes / MIB:,.1f} MiB",
        f"{report.in_place_bytes / MIB:,.1f} MiB",
        f"{report.temporary_bytes / MIB:,.2f} MiB",
        f"{report.num_flops / 1e9:,.2f} GFLOP",
        f"{report.moved_bytes / 1e6:,.1f} MB",
        f"{1e3 * report.least_s(*rates):.3f} ms",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.bench programs", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    text = "billions of operations a second the device can do (`bench kernels` measures it)"
    add("--gflops", type=float, required=True, help=text)
    text = "billions of bytes a second its memory gives"
    add("--gb-per-s", type=float, required=True, help=text)
    add("--output-json", type=Path, metavar="FILE")
    add_engine_flags(parser)
    return parser
