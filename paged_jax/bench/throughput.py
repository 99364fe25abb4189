"""`bench throughput`: how fast a list of requests is done, all of them submitted at once.

Greedy, to exact lengths, ends of sequence ignored.
"""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Protocol

from paged_jax.bench.backends import Peer, open_peer, own_python
from paged_jax.bench.datasets import BenchRequest, Encoder, add_dataset_flags, read_dataset
from paged_jax.bench.machine import cpu_shares, cpu_times, machine_facts
from paged_jax.bench.metrics import Figures, Outcome, summarise
from paged_jax.bench.report import append_json, exit_if_failed, extra_rows, metric_rows
from paged_jax.config import OptionError
from paged_jax.engine_args import EngineArgs
from paged_jax.flags import add_engine_flags, read_engine_args

BACKENDS = ("paged_jax", "transformers", "vllm", "llama.cpp", "openvino", "transformers-server")
PERCENTILES = (50, 90, 99)
WARM_UP = 64  # requests


class Backend(Protocol):
    """What runs lists of requests: paged_jax, or a peer."""

    def run(self, requests: Sequence[BenchRequest]) -> list[Outcome]:
        """Generate for all requests, submitted at once; one outcome each, in order."""
        ...

    def figures(self) -> Figures:
        """Return memory, KV use, prefix hits and compilations, as far as they are known."""
        ...

    def reset(self) -> None:
        """Forget cached prefixes."""
        ...

    def close(self) -> None:
        """End, and free the memory."""
        ...


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = _parser().parse_args(arguments)
    args = read_engine_args(options)
    backend = open_backend(args, options)
    try:
        encoder = encoder_of(options, args.model)
        warm_up(backend, options, encoder)
        figures, outcomes = measure(backend, read_dataset(options, encoder))
    finally:
        backend.close()
    record = {
        "backend": options.backend,
        **_facts(backend),
        "model_id": args.model,
        **vllm_keys(figures),
        **figures,
    }
    print(text(figures))
    if options.output_json:
        append_json(options.output_json, record | machine_facts())
    exit_if_failed(outcomes)


def open_backend(args: EngineArgs, options: argparse.Namespace) -> Backend:
    """Load the engine, or start the peer that `--backend` names.

    Raises:
        OptionError: an option is for the other kind, or the peer does not start.
    """
    if options.backend == "paged_jax":
        if options.peer_option or options.backend_python:
            raise OptionError("--peer-option and --backend-python need another --backend")
        from paged_jax.bench.engine_run import OwnEngine  # here: it loads jax

        return OwnEngine(args)
    if args.model is None:
        raise OptionError(f"--backend {options.backend} needs --model, in the peer's own format")
    _refuse_own(args, options.backend)
    return open_peer(
        Peer(
            name=options.backend,
            program=options.backend_python or own_python(),
            model=args.model,
            dtype=args.dtype,
            threads=options.threads,
            options=_peer_options(options.peer_option or ()),
            max_concurrency=options.max_concurrency,
        )
    )


def warm_up(backend: Backend, options: argparse.Namespace, encoder: Encoder | None) -> None:
    """Run some requests of other seeds, `--num-warmups` times, and forget their prefixes."""
    for turn in range(options.num_warmups):
        other = argparse.Namespace(**vars(options) | {"seed": options.seed + 1_000_003 + turn})
        backend.run(read_dataset(other, encoder)[:WARM_UP])
        backend.reset()


def measure(backend: Backend, requests: Sequence[BenchRequest]) -> tuple[Figures, list[Outcome]]:
    """Run the requests once; return vLLM's serving figures, those of memory and cache, and what
    became of each request.
    """
    before, start = cpu_times(os.getpid()), time.perf_counter()  # peers are its children
    outcomes = backend.run(requests)
    duration_s, after = time.perf_counter() - start, cpu_times(os.getpid())
    figures = summarise(outcomes, duration_s, percentiles=PERCENTILES)
    return figures | backend.figures() | cpu_shares(before, after), outcomes


def vllm_keys(figures: Figures) -> dict[str, float | int | None]:
    """Return the keys of vLLM's throughput JSON."""
    num_input, num_output = figures["total_input_tokens"], figures["total_output_tokens"]
    return {
        "elapsed_time": figures["duration"],
        "num_requests": figures["completed"],
        "total_num_tokens": (num_input or 0) + (num_output or 0),
        "requests_per_second": figures["request_throughput"],
        "tokens_per_second": figures["total_token_throughput"],
    }


def text(figures: Figures) -> str:
    """Return the report."""
    lines = [
        f"Throughput: {figures['request_throughput']:.2f} requests/s, "
        f"{figures['total_token_throughput']:.2f} total tokens/s, "
        f"{figures['output_throughput']:.2f} output tokens/s",
        f"Total num prompt tokens:  {figures['total_input_tokens']}",
        f"Total num output tokens:  {figures['total_output_tokens']}",
        f"Failed requests:          {figures['failed']}",
        *metric_rows(figures, ("ttft", "tpot", "itl"), PERCENTILES),
        *extra_rows(figures),
    ]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.bench throughput", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--num-warmups",
        type=int,
        default=1,
        help="runs of up to 64 requests before it counts (default: %(default)s)",
    )
    add("--output-json", type=Path, metavar="FILE", help="append the figures as a line of JSON")
    add("--backend", choices=BACKENDS, default="paged_jax", help="(default: %(default)s)")
    add("--backend-python", metavar="PATH", help="the peer's Python; llama.cpp: its llama-server")
    add("--peer-option", action="append", metavar="NAME=VALUE", help="may be repeated")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of a peer (all cores)")
    add("--max-concurrency", type=int, help="requests under way at once at a peer's server")
    add_dataset_flags(parser)
    add_engine_flags(parser)
    return parser


def _refuse_own(args: EngineArgs, backend: str) -> None:
    """Raise if options of paged_jax are set that a peer would not see."""
    for spec in fields(EngineArgs):
        is_shared = spec.name in ("model", "dtype", "seed")
        if not is_shared and getattr(args, spec.name) != spec.default:
            flag = "--" + spec.name.replace("_", "-")
            raise OptionError(f"{flag} is paged_jax's own: give {backend} a --peer-option instead")


def _peer_options(words: Sequence[str]) -> dict[str, str]:
    for word in words:
        if "=" not in word:
            raise OptionError(f"--peer-option must be NAME=VALUE, not {word!r}")
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _facts(backend: Backend) -> dict[str, object]:
    """Return what a peer says of itself, under names of its own."""
    facts = getattr(backend, "facts", {})
    return {f"backend_{name}": value for name, value in facts.items()}


def encoder_of(options: argparse.Namespace, model: str | None) -> Encoder | None:
    """Return the model's tokenizer where the data set needs one."""
    if options.dataset_name != "sharegpt":
        return None
    from paged_jax.engine.preparation import load_tokenizer
    from paged_jax.weights.source import resolve_model

    return load_tokenizer(resolve_model(model, with_weights=False), may_lack=False)
