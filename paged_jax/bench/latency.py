"""`bench latency`: how long one batch of equal requests takes, again and again."""

import argparse
import time
from pathlib import Path

import numpy as np

from paged_jax.bench.datasets import Draw, random_requests
from paged_jax.bench.machine import machine_facts
from paged_jax.bench.metrics import Figures
from paged_jax.bench.report import append_json, exit_if_failed, extra_rows
from paged_jax.engine_args import EngineArgs
from paged_jax.flags import add_engine_flags, read_engine_args

PERCENTILES = (10, 25, 50, 75, 90, 99)


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = _parser().parse_args(arguments)
    args = read_engine_args(options)
    latencies, figures = measure(args, options)
    shown = {str(p): float(np.percentile(latencies, p)) for p in PERCENTILES}
    record = {
        "model_id": args.model,
        "avg_latency": float(np.mean(latencies)),
        "latencies": latencies,
        "percentiles": shown,
        **figures,
    }
    print(f"Avg latency: {record['avg_latency']} seconds")
    for percent, seconds in shown.items():
        print(f"{percent}% percentile latency: {seconds} seconds")
    print("\n".join(extra_rows(figures)))
    if options.output_json:
        append_json(options.output_json, record | machine_facts())


def measure(args: EngineArgs, options: argparse.Namespace) -> tuple[list[float], Figures]:
    """Return the seconds of each iteration, and the last one's memory and cache figures.

    Every iteration has prompts of its own, so that none is served from the prefix cache.
    """
    from paged_jax.bench.engine_run import OwnEngine  # here, so that --help does not wait for jax

    engine = OwnEngine(args)
    latencies: list[float] = []
    try:
        for turn in range(options.num_iters_warmup + options.num_iters):
            draw = Draw(options.batch_size, options.vocab_size, options.seed + turn)
            requests = random_requests(
                draw, input_len=options.input_len, output_len=options.output_len
            )
            start = time.perf_counter()
            outcomes = engine.run(requests)
            latencies.append(time.perf_counter() - start)
            exit_if_failed(outcomes)
        return latencies[options.num_iters_warmup :], engine.figures()
    finally:
        engine.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.bench latency", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("--input-len", type=int, default=32, help="tokens (default: %(default)s)")
    add("--output-len", type=int, default=128, help="tokens (default: %(default)s)")
    add("--batch-size", type=int, default=8, help="requests (default: %(default)s)")
    add("--num-iters-warmup", type=int, default=10, help="(default: %(default)s)")
    add("--num-iters", type=_positive, default=30, help="(default: %(default)s)")
    add("--vocab-size", type=int, default=32_000, help="random ids are below (%(default)s)")
    add("--output-json", type=Path, metavar="FILE", help="append the figures as a line of JSON")
    add_engine_flags(parser)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value
