"""`bench startup`: how long `python -m paged_jax.serve` takes until it answers, in fresh processes.

Cold is with an empty compilation cache, warm with what the cold start left there. The default model
must be on the machine already.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paged_jax.bench.backends import free_port
from paged_jax.bench.machine import machine_facts, peak_rss_bytes
from paged_jax.bench.report import append_json
from paged_jax.config import OptionError

# What the server says of its phases: a line "Start-up:", then a line for each.
TABLE = "Start-up:"
PHASE = re.compile(r"\s+([a-z][a-z -]*?)\s+([\d.]+) s$")
PERCENTILES = (10, 50, 90, 99)
END_S = 30


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = _parser().parse_args(arguments)
    flags = [word for word in options.flags if word != "--"]
    colds, warms = [], []
    for _ in range(options.num_iters):
        with tempfile.TemporaryDirectory() as cache:
            colds.append(start_once(flags, Path(cache)))
            warms.append(start_once(flags, Path(cache)))
    record = {"flags": flags, "cold": _figures(colds), "warm": _figures(warms)}
    print(text(record["cold"], record["warm"]))
    if options.output_json:
        append_json(options.output_json, record | machine_facts())


def start_once(flags: Sequence[str], cache: Path, program: Sequence[str] = ()) -> dict[str, float]:
    """Start a server and end it.

    Returns:
        seconds of the phases that the server tells of, of the rest, and of the whole; peak memory.
    Args:
        cache: the folder of compiled programs.
        program: what to start; the server if empty.
    Raises:
        OptionError: it ended before it was ready; quotes its last lines.
    """
    command = [*(program or (sys.executable, "-m", "paged_jax.serve")), *flags]
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)}
    start = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--port", str(free_port())], stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        phases = _follow(process)
        ready = time.perf_counter() - start
        rest = ready - sum(phases.values())
        peak = float(peak_rss_bytes(process.pid))
        return {**phases, "rest": rest, "ready": ready, "peak_rss_bytes": peak}
    finally:
        process.terminate()
        process.communicate(timeout=END_S)


def _follow(process: "subprocess.Popen[str]") -> dict[str, float]:
    """Read the log until the server is ready; return the phases it tells of."""
    phases: dict[str, float] = {}
    seen: list[str] = []
    is_table = False
    assert process.stderr is not None, "started with a pipe"
    for line in process.stderr:
        seen.append(line.strip())
        row = PHASE.fullmatch(line.rstrip("\n")) if is_table else None
        is_table = TABLE in line or row is not None
        if row is not None and row[1] != "total":
            phases[row[1]] = float(row[2])
        if "running on http" in line:
            return phases
    raise OptionError(f"the server ended early; its last lines: {' | '.join(seen[-3:])}")


def text(cold: dict[str, list[float]], warm: dict[str, list[float]]) -> str:
    """Return the table of phases, in medians of seconds, and percentiles of the whole."""
    lines = [f"{'phase':<16}{'cold s':>10}{'warm s':>10}"]
    for phase in cold:
        if phase != "peak_rss_bytes":
            both = (np.median(figures.get(phase, [0.0])) for figures in (cold, warm))
            lines.append(f"{phase:<16}" + "".join(f"{seconds:>10.2f}" for seconds in both))
    for name, figures in (("Cold", cold), ("Warm", warm)):
        lines += [
            f"{name} start P{percent}: {np.percentile(figures['ready'], percent):.2f} s"
            for percent in PERCENTILES
        ]
    peak = max(cold["peak_rss_bytes"] + warm["peak_rss_bytes"]) / (1 << 20)
    return "\n".join([*lines, f"Peak memory: {peak:.0f} MiB"])


def _figures(starts: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """Turn starts into lists by phase."""
    names = dict.fromkeys(name for start in starts for name in start)
    return {name: [start[name] for start in starts if name in start] for name in names}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.bench startup", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("--num-iters", type=int, default=1, help="cold and warm starts each (%(default)s)")
    add("--output-json", type=Path, metavar="FILE", help="append the figures as a line of JSON")
    add("flags", nargs=argparse.REMAINDER, metavar="-- FLAGS", help="for the server")
    return parser
