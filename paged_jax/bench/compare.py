"""`bench compare`: the named workloads on paged_jax and its peers, side by side on this machine.

Engines alternate: a repetition runs every backend once, each in a fresh process, and every
workload in it, warmed up with other prompts and short answers. Each result is a line of JSON as
soon as it is there; a run that was stopped goes on where it ended.
"""

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

from paged_jax.bench.backends import Peer, RunnerBackend, ServerBackend, open_peer
from paged_jax.bench.machine import cpu_shares, cpu_times, machine_facts
from paged_jax.bench.metrics import summarise
from paged_jax.bench.peer_setups import SETUPS, Setup
from paged_jax.bench.report import append_json
from paged_jax.bench.results_table import read_results, summary_line
from paged_jax.bench.workloads import CLIENTS, WORKLOADS, Workload, workload
from paged_jax.config import OptionError

RESULTS = Path(__file__).parent / "results"
WARM_SEED = 1000
WARM_TOKENS = 16  # of each answer of a warm-up: every shape is seen, most of the time is saved


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = _parser().parse_args(arguments)
    names = options.workloads.split(",")
    workloads = {name: workload(name) for name in names}
    setups = [_setup(word, options.peers) for word in options.backends.split(",")]
    done = {(r["backend"], r["workload"], r["rep"]) for r in read_results(options.out)}
    for rep in range(options.reps):
        for setup in setups:
            missing = {
                name: load
                for name, load in workloads.items()
                if (setup.name, name, rep) not in done and setup.runs(name)
            }
            _run_backend(setup, missing, rep, options)


def _setup(word: str, peers: Path) -> Setup:
    """Read NAME or NAME:DTYPE."""
    name, _, dtype = word.partition(":")
    if name not in SETUPS:
        raise OptionError(f"--backends must be of {', '.join(SETUPS)}, not {name!r}")
    setup = SETUPS[name].within(peers)
    return setup.with_dtype(dtype) if dtype else setup


def _run_backend(
    setup: Setup, workloads: dict[str, Workload], rep: int, options: argparse.Namespace
) -> None:
    """Run some workloads in one process offline, and in another those over HTTP."""
    offline = {name: load for name, load in workloads.items() if not load.is_online}
    online = {name: load for name, load in workloads.items() if load.is_online}
    for group in setup.groups(offline):
        _run_group(open_peer, setup.peer(group), group, (rep, setup, options))
    if online:
        peer = setup.server(online, max_concurrency=CLIENTS)
        _run_group(ServerBackend, peer, online, (rep, setup, options))


def _run_group(open_backend, peer: Peer, workloads: dict[str, Workload], context: tuple) -> None:
    rep, setup, options = context
    try:
        backend = open_backend(peer)
    except OptionError as error:
        print(f"{setup.name}: {error}", flush=True)
        return
    try:
        for name, load in workloads.items():
            figures = _measure(backend, load, rep, options.num_prompts)
            record = {
                "backend": setup.name, "workload": name, "rep": rep, "dtype": peer.dtype,
                "threads": peer.threads, "options": dict(peer.options),
                **{f"backend_{key}": value for key, value in backend.facts.items()},
                **figures, **machine_facts(),
            }  # fmt: skip
            append_json(options.out, record)
            print(summary_line(record), flush=True)
    except OptionError as error:
        print(f"{setup.name}: {error}", flush=True)
    finally:
        backend.close()


def _measure(
    backend: RunnerBackend | ServerBackend, load: Workload, rep: int, count: int | None
) -> dict[str, object]:
    """Warm up with another seed, then run once, with the figures of `throughput`."""
    warm = load.make(WARM_SEED + rep)[:count]
    backend.run([replace(each, max_tokens=min(each.max_tokens, WARM_TOKENS)) for each in warm])
    backend.reset()
    requests = load.make(rep)[:count]
    if load.is_warm:
        backend.run(requests[-1:])
    before, start = cpu_times(os.getpid()), time.perf_counter()
    outcomes = backend.run(requests)
    duration_s, after = time.perf_counter() - start, cpu_times(os.getpid())
    figures = summarise(outcomes, duration_s)
    errors = sorted({outcome.error for outcome in outcomes if outcome.error is not None})
    own = {"num_prompts": len(requests), "error": errors[0] if errors else None}
    return {**figures, **own, **backend.figures(), **cpu_shares(before, after)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.bench compare", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("--peers", type=Path, required=True, metavar="DIR", help="made by peers/setup.sh")
    add("--backends", default=",".join(SETUPS), metavar="LIST",
        help="vllm:float32 is vllm in another dtype (%(default)s)")  # fmt: skip
    add("--workloads", default=",".join(WORKLOADS), metavar="LIST", help="(%(default)s)")
    add("--reps", type=int, default=3, help="repetitions (default: %(default)s)")
    add("--num-prompts", type=int, help="only so many of each workload, for a rehearsal")
    day = time.strftime("%Y-%m-%d")
    add("--out", type=Path, default=RESULTS / f"cpu-{day}.jsonl", help="(%(default)s)")
    return parser
