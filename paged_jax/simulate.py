"""python -m paged_jax.simulate: the real scheduler on a clock of its own, without any device.

Prints what a run would come to, or compares systems: `--compare baselines` contiguous allocation
and static batching with paging and continuous batching, `--compare policies` the orders of service.
Times are those of a cost model: a named one, or one fitted to the lines of `bench step`.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from paged_jax.config import OptionError
from paged_jax.host.arrivals import Load, read_trace
from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.policies import POLICIES
from paged_jax.host.request import Request
from paged_jax.host.simulate import Simulation
from paged_jax.host.step_cost import COSTS, StepCost
from paged_jax.host.summary import Summary, jain, summarise
from paged_jax.host.system import System

HEAD = (
    "system", "tokens/s", "TTFT s", "p99 s", "TPOT ms", "slots %", "pool %", "running",
    "preempted", "hits %", "Jain",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; end with code 2 and one line where an option is wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        rows = list(run(options))
    except (OptionError, InvalidRequest) as error:
        parser.exit(2, f"error: {error}\n")
    print(table(rows))
    if options.output_json:
        from paged_jax.bench.report import append_json

        for name, summary, fairness in rows:
            append_json(options.output_json, {"system": name, "jain": fairness, **asdict(summary)})


Row = tuple[str, Summary, float]


def run(options: argparse.Namespace) -> Iterator[Row]:
    """Simulate what the flags ask for; yield a row for each system."""
    cost, requests = cost_of(options.cost), requests_of(options)
    for name, system in systems_of(options):
        simulation = system.simulation(requests, cost).run()
        yield name, summary_of(simulation), jain(simulation.shares.values())


def summary_of(simulation: Simulation) -> Summary:
    """Return the figures of a finished simulation."""
    block_size = simulation.scheduler.cache.block_size
    return summarise(simulation.steps, simulation.requests, block_size=block_size)


def cost_of(name: str) -> StepCost:
    """Return a named cost model, or fit one to a file of `bench step` and say how well it fits."""
    if name in COSTS:
        return COSTS[name]
    from paged_jax.bench.cost_fit import fit_cost, read_samples  # here: it needs numpy

    samples = read_samples(Path(name))
    fit = fit_cost(samples)
    print(
        f"cost model of {len(samples)} steps, rms error {fit.rms_error:.1%}, largest "
        f"{fit.max_error:.1%}: {fit.cost}",
        file=sys.stderr,
    )
    return fit.cost


def requests_of(options: argparse.Namespace) -> list[Request]:
    """Return the requests: of a trace, or random ones."""
    if options.trace:
        return read_trace(options.trace, seed=options.seed)
    return Load(
        num_requests=options.num_requests,
        rate=options.rate,
        burstiness=options.burstiness,
        prompt_lens=options.prompt_lens,
        output_lens=options.output_lens,
        prefix_len=options.prefix_len,
        clients=options.clients,
        seed=options.seed,
    ).requests()


def systems_of(options: argparse.Namespace) -> Iterator[tuple[str, System]]:
    """Yield the systems to simulate, by name."""
    base = System(
        pool_tokens=options.pool_tokens,
        block_size=options.block_size,
        max_seqs=options.max_num_seqs,
        max_tokens_per_step=options.max_num_batched_tokens,
        max_model_len=options.max_model_len,
        policy=options.scheduling_policy,
    )
    if options.compare == "policies":
        for name in POLICIES:
            yield name, replace(base, policy=name)
    elif options.compare == "baselines":
        for is_contiguous in (True, False):
            for is_static in (True, False):
                words = ("contiguous" if is_contiguous else "paged",
                    "static" if is_static else "continuous")  # fmt: skip
                both = replace(base, is_contiguous=is_contiguous, is_static=is_static)
                yield ", ".join(words), both
    else:
        yield base.policy, base


def table(rows: Sequence[Row]) -> str:
    """Return the figures as lines of text, a system each."""
    lines = [f"{HEAD[0]:<22}" + "".join(f"{word:>10}" for word in HEAD[1:])]
    for name, of, fairness in rows:
        figures = (
            of.throughput, of.ttft_mean_s, of.ttft_p99_s, 1e3 * of.tpot_mean_s, 100 * of.slot_use,
            100 * of.pool_use, of.num_running_mean, of.num_preemptions, 100 * of.hit_rate, fairness,
        )  # fmt: skip
        lines.append(f"{name:<22}" + "".join(f"{figure:>10.4g}" for figure in figures))
    return "\n".join(lines)


def _lens(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    return int(low), int(high or low)


def _weights(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(":")))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.simulate", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--compare", choices=("baselines", "policies"), help="several systems beside each other")
    add("--cost", default="two-cores", help=f"{', '.join(COSTS)}, or a file of bench step")
    add("--output-json", type=Path, metavar="FILE", help="append each system as a line of JSON")
    _add_load_flags(parser.add_argument_group("requests"))
    _add_system_flags(parser.add_argument_group("system"))
    return parser


def _add_load_flags(group: "argparse._ArgumentGroup") -> None:
    add, like = group.add_argument, Load()
    add("--trace", type=Path, metavar="FILE",
        help="JSON lines: at_s, prompt_len or prompt, max_tokens, client, priority")  # fmt: skip
    add("--num-requests", type=int, default=like.num_requests)
    add("--rate", type=float, default=like.rate, help="requests a second; inf: all at once")
    add("--burstiness", type=float, default=1.0, help="1: Poisson; less: bursts")
    add("--prompt-lens", type=_lens, default=like.prompt_lens, metavar="LOW:HIGH", help="uniform")
    add("--output-lens", type=_lens, default=like.output_lens, metavar="LOW:HIGH", help="uniform")
    add("--prefix-len", type=int, default=0, help="tokens common to all prompts")
    add("--clients", type=_weights, default=like.clients, metavar="N:N:...",
        help="clients, and how many requests each sends for the others'")  # fmt: skip
    add("--seed", type=int, default=0)


def _add_system_flags(group: "argparse._ArgumentGroup") -> None:
    add, like = group.add_argument, System()
    add("--pool-tokens", type=int, default=like.pool_tokens, help="slots of the KV pool")
    add("--block-size", type=int, default=like.block_size)
    add("--max-num-seqs", type=int, default=like.max_seqs)
    add("--max-num-batched-tokens", type=int, default=like.max_tokens_per_step)
    add("--max-model-len", type=int, default=like.max_model_len)
    add("--scheduling-policy", default=like.policy, help=f"{', '.join(POLICIES)}, MODULE:CLASS")


if __name__ == "__main__":
    main()
