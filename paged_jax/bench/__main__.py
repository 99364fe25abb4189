"""The command line of the benchmarks: `python -m paged_jax.bench COMMAND ...`."""

import argparse
import sys
from importlib import import_module

from paged_jax.config import ModelError, OptionError
from paged_jax.host.invalid_request import InvalidRequest

# Command -> what it does. The module of that name has a `main(arguments)`.
COMMANDS = {
    "blocks": "what a block size costs and gains: waste, prefix hits, tables, attention",
    "compare": "the named workloads on paged_jax and its peers, side by side",
    "gpu": "check and time the kernels on this GPU, in 8 minutes",
    "host": "the host's share of a step, against the number of sequences",
    "kernels": "how fast the parts of a step are on this device, every back end",
    "latency": "how long one batch takes, again and again",
    "mesh": "one trace on several layouts of devices: collectives, memory, step time, a picture",
    "programs": "what each compiled program needs, and the least time it could take",
    "results_table": "the table of what compare measured, in Markdown",
    "scaling": "tokens/s against concurrent requests, step time against context; a picture",
    "serve": "load on a running server: streaming clients, latencies, goodput",
    "simulator": "how close the simulator comes to the engine, on the same requests",
    "startup": "cold and warm start of the server, by phase",
    "step": "the time of a step against batch and context, as JSON lines",
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
