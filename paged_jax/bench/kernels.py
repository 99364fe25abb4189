"""`bench kernels`: how fast the parts of a step are on this device, every back end there is.

Attention, the write of keys and values, products and the sampler, at the shapes of SmolLM2-135M,
with the share of what a large copy and a large product reach on the same machine.
"""

import argparse
import os
from pathlib import Path

from paged_jax.bench.machine import machine_facts
from paged_jax.bench.report import append_json

HEAD = f"{'case':<44}{'us':>12}{'GB/s':>9}{'GFLOP/s':>10}{'share %':>9}"


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = _parser().parse_args(arguments)
    from paged_jax.bench.kernel_cases import measure_kernels  # here: it loads jax

    print(HEAD)
    for record in measure_kernels(options.only, is_quick=options.quick):
        print(line(record), flush=True)
        if options.out:
            append_json(options.out, {**record, **machine_facts(), "threads": os.cpu_count()})


def line(record: dict) -> str:
    """Return a case as a line; one that could not be measured says why."""
    if "error" in record:
        return f"{record['case']:<44}{record['error']}"
    share = record["share_of_limit"]
    shown = f"{100 * share:>9.1f}" if share is not None else f"{'':>9}"
    return (
        f"{record['case']:<44}{1e6 * record['median_s']:>12.1f}"
        f"{record['bytes_per_s'] / 1e9:>9.1f}{record['flops_per_s'] / 1e9:>10.1f}{shown}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.bench kernels", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("--only", default="", metavar="TEXT", help="cases whose name contains it")
    add("--quick", action="store_true", help="tiny shapes and few calls, to see that all runs")
    add("--out", type=Path, metavar="FILE", help="append every case as a line of JSON")
    return parser
