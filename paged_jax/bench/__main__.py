"""The command line of the benchmarks: `python -m paged_jax.bench gpu --out DIR`."""

import argparse
from pathlib import Path


def main(arguments: list[str] | None = None) -> None:
    """Run one benchmark."""
    parser = argparse.ArgumentParser(prog="python -m paged_jax.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    gpu = commands.add_parser("gpu", help="check and time the kernels on this GPU, in 8 minutes")
    gpu.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results go")
    gpu.add_argument(
        "--rehearse", action="store_true", help="tiny shapes in interpret mode, on any machine"
    )
    options = parser.parse_args(arguments)
    from paged_jax.bench.gpu import run_gpu  # here, so that --help does not wait for jax

    run_gpu(options.out, is_rehearsal=options.rehearse)


if __name__ == "__main__":
    main()
