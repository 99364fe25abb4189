"""`bench host`: the host's share of a decode step, on a device whose programs return at once.

Times are CPU time of the stepping thread, so that other processes do not count. What is left out is
what a real device adds to it: the dispatch of the programs.
"""

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paged_jax.bench.machine import machine_facts
from paged_jax.bench.report import append_json, row, title
from paged_jax.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from paged_jax.host.sampling_params import SamplingParams

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
BUDGET = 4096
BLOCK_SIZE = 16
VOCAB = 256  # bytes are tokens


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = _parser().parse_args(arguments)
    figures = {
        count: measure(count, context=options.context, steps=options.steps)
        for count in options.num_seqs
    }
    print("\n".join(rows_of(figures)))
    if options.output_json:
        record = {"microseconds": figures, "context": options.context, "line": line_of(figures)}
        append_json(options.output_json, record | machine_facts())


def measure(num_seqs: int, *, context: int, steps: int) -> float:
    """Return the median microseconds of a step in which `num_seqs` sequences decode.

    Args:
        context: prompt length in tokens; each timed step makes the sequences one longer.
    """
    from paged_jax.bench.instant import instant_engine  # here, so that --help does not wait for jax

    engine = instant_engine(engine_config(num_seqs, context + steps + 2))
    draw = random.Random(0)
    params = SamplingParams(temperature=0.0, max_tokens=steps + 2, ignore_eos=True)
    for number in range(num_seqs):
        prompt = [draw.randrange(VOCAB) for _ in range(context)]
        engine.add(prompt, params, request_id=str(number))
    while engine.scheduler.num_waiting:
        engine.step()
    seconds = []
    for _ in range(steps):
        start_s = time.thread_time()
        engine.step()
        seconds.append(time.thread_time() - start_s)
    return float(np.median(seconds)) * 1e6


def engine_config(num_seqs: int, max_len: int) -> EngineConfig:
    """Return a configuration whose device side is as small as can be."""
    num_blocks = 1 + num_seqs * -(-max_len // BLOCK_SIZE)
    model = ModelConfig(
        family="llama",
        vocab_size=VOCAB,
        num_layers=1,
        embed_dim=8,
        mlp_dim=8,
        num_q_heads=1,
        num_kv_heads=1,
        head_dim=2,
        max_position=max_len,
    )
    return EngineConfig(
        model=model,
        cache=CacheConfig(num_blocks, BLOCK_SIZE),
        scheduler=SchedulerConfig(num_seqs, max(BUDGET, num_seqs), max_len),
        enforce_eager=True,  # nothing is compiled, as nothing is run
    )


def line_of(figures: dict[int, float]) -> dict[str, float]:
    """Fit microseconds = fixed + slope * sequences, each point by its relative error."""
    counts, values = np.array(list(figures)), np.array(list(figures.values()))
    if len(counts) < 2:
        return {}
    slope, fixed = np.polyfit(counts, values, 1, w=1 / values)
    return {"fixed": float(fixed), "slope": float(slope)}


def rows_of(figures: dict[int, float]) -> list[str]:
    """Return the report's lines."""
    rows = [title("Host time per step (microseconds)")]
    rows += [row(f"{count} sequences:", value) for count, value in figures.items()]
    line = line_of(figures)
    if line:
        rows.append(row("Fixed:", line["fixed"]))
        rows.append(row("For each sequence:", line["slope"]))
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.bench host", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("--num-seqs", type=_counts, default=COUNTS, metavar="N,N,...", help="(default: 1 to 512)")
    add("--context", type=int, default=256, help="tokens of a prompt (default: %(default)s)")
    add("--steps", type=int, default=100, help="steps timed (default: %(default)s)")
    add("--output-json", type=Path, metavar="FILE", help="append the figures as a line of JSON")
    return parser


def _counts(text: str) -> Sequence[int]:
    counts = tuple(int(part) for part in text.split(","))
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"numbers of sequences start at 1, not {min(counts)}")
    return counts
