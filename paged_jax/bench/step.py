"""`bench step`: the time of one engine step against the batch and the context.

The engine really serves what is measured, so host work and drawing are in it. Every record is a
line of JSON, {"kind", "num_seqs", "num_tokens", "context", "median_s", "p90_s", ...}, to which a
cost model can be fitted: of a decode step `context` is the mean over its sequences, a prefill step
computes `num_tokens` of a new prompt.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paged_jax.bench.datasets import Draw, exactly, random_requests
from paged_jax.bench.machine import machine_facts
from paged_jax.bench.report import append_json, row
from paged_jax.config import OptionError
from paged_jax.engine_args import EngineArgs
from paged_jax.flags import add_engine_flags, read_engine_args

if TYPE_CHECKING:
    from paged_jax.engine.engine import Engine

NAMES = count()


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = _parser().parse_args(arguments)
    args = read_engine_args(options)
    sizes = [numbers(text) for text in (options.batches, options.contexts, options.prefills)]
    for record in measure_steps(args, (sizes[0], sizes[1], sizes[2]), options):
        label = f"{record['kind']} {record['num_seqs']} x {record['context']:.0f} (ms):"
        print(row(label, 1e3 * record["median_s"]), flush=True)
        append_json(options.out, {"model": args.model, "dtype": args.dtype, **record,
            **machine_facts()})  # fmt: skip


def measure_steps(
    args: EngineArgs,
    sizes: tuple[list[int], list[int], list[int]],
    options: argparse.Namespace,
) -> Iterator[dict]:
    """Yield a record for every batch at the first context, every further context at the last batch,
    and every length of a prompt.
    """
    from paged_jax.build import build_engine  # here, so that --help does not wait for jax

    batches, contexts, prefills = sizes
    engine = build_engine(replace(args, enable_prefix_caching=False))
    shapes = [(batch, contexts[0]) for batch in batches]
    shapes += [(batches[-1], context) for context in contexts[1:]]
    try:
        for batch, context in shapes:
            yield time_decode(engine, batch, context, options)
        for length in prefills:
            yield time_prefill(engine, length, options)
    finally:
        engine.close()


def time_decode(engine: "Engine", batch: int, context: int, options: argparse.Namespace) -> dict:
    """Time steps in which `batch` sequences draw one token each."""
    budget = engine.config.scheduler.max_tokens_per_step
    prompt_len = max(1, context - options.num_steps // 2)
    first = -(-batch * prompt_len // max(1, budget - batch)) + batch  # steps of the prompts
    names = _submit(engine, batch, prompt_len, first + options.num_steps + 2)
    waiting = set(names)
    while waiting:
        waiting -= {delta.request_id for delta in engine.step()}
    engine.step()
    seconds = [_step_s(engine) for _ in range(options.num_steps)]
    held = engine.stats().usage.num_tokens / batch - options.num_steps / 2
    for name in names:
        engine.abort(name)
    return {"kind": "decode", "num_seqs": batch, "num_tokens": batch, "context": held,
        **_spread(seconds)}  # fmt: skip


def time_prefill(engine: "Engine", length: int, options: argparse.Namespace) -> dict:
    """Time steps that compute a whole prompt and draw its first token."""
    budget = engine.config.scheduler.max_tokens_per_step
    if length > budget:
        raise OptionError(
            f"--prefills {length} exceeds --max-num-batched-tokens ({budget}): raise that"
        )
    seconds = []
    for _ in range(1 + options.num_steps // 4):
        _submit(engine, 1, length, 1)
        seconds.append(_step_s(engine))
        while engine.has_work:
            engine.step()
    return {"kind": "prefill", "num_seqs": 1, "num_tokens": length, "context": length,
        **_spread(seconds[1:])}  # fmt: skip


def numbers(text: str) -> list[int]:
    """Read `1,8,64`; raises OptionError."""
    words = text.split(",")
    if not all(word.isdecimal() and int(word) for word in words):
        raise OptionError(f"--batches, --contexts and --prefills are like 1,8,64, not {text!r}")
    return [int(word) for word in words]


def _submit(engine: "Engine", batch: int, prompt_len: int, max_tokens: int) -> list[str]:
    vocab_size = engine.config.model.vocab_limit or engine.config.model.vocab_size
    draw = Draw(batch, vocab_size)
    params = exactly(max_tokens)
    names = []
    for request in random_requests(draw, input_len=prompt_len, output_len=1):
        names.append(f"step-{next(NAMES)}")
        engine.add(request.prompt, params, request_id=names[-1])
    return names


def _step_s(engine: "Engine") -> float:
    """Step until something is drawn; return the seconds it took."""
    start = time.perf_counter()
    while not engine.step():
        assert engine.has_work, "the sequences ended while they were measured"
    return time.perf_counter() - start


def _spread(seconds: list[float]) -> dict[str, float | int]:
    median, p90 = np.percentile(seconds, [50, 90])
    return {"median_s": float(median), "p90_s": float(p90), "num_steps": len(seconds)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.bench step", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("--batches", default="1,2,4,8,16,32,64", metavar="LIST", help="(%(default)s)")
    add("--contexts", default="256,1024", metavar="LIST", help="(%(default)s)")
    add("--prefills", default="64,128,256,512", metavar="LIST", help="(%(default)s)")
    add("--num-steps", type=int, default=16, help="timed for each (default: %(default)s)")
    add("--out", type=Path, default=Path("steps.jsonl"), metavar="FILE", help="(%(default)s)")
    add_engine_flags(parser)
    return parser
