"""`bench scaling`: output tokens/s against concurrent requests, and step time against context.

Writes JSON, and a picture of two plots where matplotlib is installed (the extra `bench`).
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from paged_jax.bench.datasets import Draw, random_requests
from paged_jax.bench.machine import machine_facts
from paged_jax.bench.report import row, write_json
from paged_jax.bench.step import numbers, time_decode
from paged_jax.bench.throughput import measure
from paged_jax.config import OptionError
from paged_jax.engine_args import EngineArgs
from paged_jax.flags import add_engine_flags, read_engine_args


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = _parser().parse_args(arguments)
    if options.only_draw:
        record = json.loads(options.out.read_text())
    else:
        record = measure_scaling(read_engine_args(options), options)
        write_json(options.out, record)
    if options.picture:
        draw_picture(record, options.picture)


def measure_scaling(args: EngineArgs, options: argparse.Namespace) -> dict:
    """Return both series, with the machine's facts.

    Every point of the first is a whole batch, 128 tokens in and 128 out unless told otherwise.
    """
    from paged_jax.bench.engine_run import OwnEngine  # here, so that --help does not wait for jax

    counts, contexts = numbers(options.concurrency), numbers(options.contexts)
    seats = args.max_num_seqs or max(counts)
    own = OwnEngine(replace(args, max_num_seqs=seats, enable_prefix_caching=False))
    rates, steps = [], []
    try:
        for count in counts:
            requests = random_requests(
                Draw(count, options.vocab_size, options.seed),
                input_len=options.input_len,
                output_len=options.output_len,
            )
            figures, _ = measure(own, requests)
            rates.append({"concurrency": count, **figures})
            print(row(f"{count} concurrent (tok/s):", figures["output_throughput"]), flush=True)
        for context in contexts:
            steps.append(time_decode(own.engine, options.step_batch, context, options))
            print(row(f"step at {context} (ms):", 1e3 * steps[-1]["median_s"]), flush=True)
    finally:
        own.close()
    facts = {"model": args.model, "dtype": args.dtype, **machine_facts()}
    return {**facts, "throughput": rates, "steps": steps}


def draw_picture(record: dict, path: Path) -> None:
    """Draw both series beside each other.

    Raises:
        OptionError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise OptionError(
            "--picture needs matplotlib: pip install 'paged_jax[bench]', then --only-draw"
        ) from error
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    rates, steps = record["throughput"], record["steps"]
    left.plot([r["concurrency"] for r in rates], [r["output_throughput"] for r in rates], "o-")
    left.set(xscale="log", xlabel="concurrent requests", ylabel="output tokens/s", ylim=(0, None))
    right.plot([s["context"] for s in steps], [1e3 * s["median_s"] for s in steps], "o-")
    right.set(xlabel="tokens of context", ylabel="ms per decode step", ylim=(0, None))
    left.set_xscale("log", base=2)
    right.set_title(f"{steps[0]['num_seqs']} sequences", fontsize=9)
    left.set_title(f"{record['cores']} cores of {record['cpu']}", fontsize=9)
    figure.savefig(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.bench scaling", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("--concurrency", default="1,2,4,8,16,32,64,128", metavar="LIST", help="(%(default)s)")
    add("--contexts", default="128,256,512,1024,2048,4096,8000", metavar="LIST",
        help="(%(default)s)")  # fmt: skip
    add("--step-batch", type=int, default=8, help="sequences of a step (%(default)s)")
    add("--num-steps", type=int, default=16, help="timed for each context (%(default)s)")
    add("--input-len", type=int, default=128, help="tokens (default: %(default)s)")
    add("--output-len", type=int, default=128, help="tokens (default: %(default)s)")
    add("--vocab-size", type=int, default=32_000, help="random ids are below (%(default)s)")
    add("--out", type=Path, default=Path("scaling.json"), metavar="FILE", help="(%(default)s)")
    add("--picture", type=Path, metavar="FILE", help="as .svg or .png")
    add("--only-draw", action="store_true", help="measure nothing, draw what --out holds")
    add_engine_flags(parser)
    return parser
