"""The command line of the benchmarks: `python -m paged_jax.bench COMMAND ...`."""

import argparse
import sys
from importlib import import_module

from paged_jax.config import ModelError, OptionError
from paged_jax.host.invalid_request import InvalidRequest

# Command -> what it does. The module of that name has a `main(arguments)`.
COMMANDS = {
    "gpu": "check and time the kernels on this GPU, in 8 minutes",
    "host": "the host's share of a step, against the number of sequences",
    "latency": "how long one batch takes, again and again",
    "serve": "load on a running server: streaming clients, latencies, goodput",
    "throughput": "how fast a list of requests is done offline, here or on a peer",
}


def main(arguments: list[str] | None = None) -> None:
    """Run one benchmark; end with code 2 and one line where an option or model is wrong."""
    arguments = sys.argv[1:] if arguments is None else arguments
    listed = "\n".join(f"  {name:<12} {text}" for name, text in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.bench",
        description=f"{__doc__}\n\ncommands (each has its own --help):\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    command = parser.parse_args(arguments[:1]).command
    try:
        import_module(f"paged_jax.bench.{command}").main(arguments[1:])
    except (OptionError, ModelError, InvalidRequest) as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
