"""`bench simulator`: how close the simulator comes to the engine, on W3 and on Poisson arrivals.

Times some steps and fits the cost model to them; runs W3, all at once and at random moments, for
real while it is recorded; simulates both, with the recorded times, where every decision must be the
same, and with the cost model, where throughput and mean time to first token are compared.
"""

import argparse
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paged_jax.bench.cost_fit import Fit, fit_cost, sample_of
from paged_jax.bench.datasets import BenchRequest
from paged_jax.bench.load import Pace
from paged_jax.bench.machine import machine_facts
from paged_jax.bench.report import append_json, row, title
from paged_jax.bench.step import measure_steps, numbers
from paged_jax.bench.workloads import mixed
from paged_jax.engine_args import EngineArgs
from paged_jax.flags import add_engine_flags, read_engine_args
from paged_jax.host.arrivals import make_request
from paged_jax.host.recording import RecordingScheduler, step_to_json
from paged_jax.host.replay import RecordedTiming, Recording, Replay
from paged_jax.host.scheduler import Scheduler
from paged_jax.host.simulate import ModelledTiming, Simulation
from paged_jax.host.step_cost import StepCost
from paged_jax.host.summary import Summary, summarise
from paged_jax.host.trace import RequestRecord, StepRecord

if TYPE_CHECKING:
    from paged_jax.engine.engine import Engine

GOOD_FIT = 0.1  # root mean squared relative error
LOAD = 0.7  # of the rate at which W3 was done, for the Poisson run


@dataclass
class Collector:
    """An EngineObserver that keeps all it is told."""

    steps: list[StepRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)

    def on_step(self, record: StepRecord) -> None:
        """Keep it."""
        self.steps.append(record)

    def on_finish(self, record: RequestRecord) -> None:
        """Keep it."""
        self.requests.append(record)


@dataclass(frozen=True)
class Comparison:
    """A real run and its simulations.

    Attributes:
        num_steps: steps of the real run.
        num_alike: of these, from the first on, those that the simulation with the recorded times
            decided alike.
    """

    name: str
    real: Summary
    simulated: Summary
    num_steps: int
    num_alike: int

    @property
    def errors(self) -> tuple[float, float]:
        """Relative errors of throughput and mean time to first token."""
        return (
            self.simulated.throughput / self.real.throughput - 1,
            self.simulated.ttft_mean_s / self.real.ttft_mean_s - 1,
        )


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = _parser().parse_args(arguments)
    args = read_engine_args(options)
    sizes = tuple(numbers(text) for text in (options.batches, options.contexts, options.prefills))
    records = list(measure_steps(args, sizes, options))  # type: ignore[arg-type]
    fit = fit_cost([sample_of(record, args.max_num_batched_tokens) for record in records])
    print(f"{fit.cost}\nrms error {fit.rms_error:.1%}, largest {fit.max_error:.1%}")
    if fit.rms_error > GOOD_FIT:
        print("the times of the steps scatter: was the machine busy?")
    for found in compare(args, fit, options.num_prompts):
        print("\n".join(rows_of(found)), flush=True)
        if options.out:
            append_json(options.out, {**asdict(found), **machine_facts()})


def compare(args: EngineArgs, fit: Fit, num_prompts: int) -> list[Comparison]:
    """Run both workloads for real, and simulate them."""
    from paged_jax.build import build_engine  # here, so that --help does not wait for jax

    engine = build_engine(args)
    vocab = engine.config.model.vocab_limit or engine.config.model.vocab_size
    requests = [_within(request, vocab, engine) for request in mixed(0)[:num_prompts]]
    try:
        at_once = _compare(engine, "W3", requests, [0.0] * len(requests), fit.cost)
        rate = LOAD * len(requests) / at_once.real.duration_s
        arrivals = Pace(request_rate=rate).arrivals_s(len(requests))
        return [at_once, _compare(engine, "Poisson", requests, arrivals, fit.cost)]
    finally:
        engine.close()


def _compare(
    engine: "Engine",
    name: str,
    requests: Sequence[BenchRequest],
    arrivals: Sequence[float],
    cost: StepCost,
) -> Comparison:
    config = engine.config
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        engine.scheduler = RecordingScheduler(config.scheduler, config.cache, path)
        real = run_for_real(engine, requests, arrivals)
        recording = Recording.read(path)
    scheduler = Scheduler(config.scheduler, config.cache)
    logical = [
        make_request(str(i), request.prompt, request.max_tokens, arrival_s=at_s)
        for i, (request, at_s) in enumerate(zip(requests, arrivals, strict=True))
    ]
    run = Simulation(
        scheduler, logical, ModelledTiming(cost, scheduler), is_overlapped=config.async_scheduling
    ).run()
    simulated = summarise(run.steps, run.requests, block_size=config.cache.block_size)
    alike = num_alike(recording, is_overlapped=config.async_scheduling)
    return Comparison(name, real, simulated, recording.num_steps, alike)


def run_for_real(
    engine: "Engine", requests: Sequence[BenchRequest], arrivals: Sequence[float]
) -> Summary:
    """Add each request at its time, step while there is work; return the run's figures."""
    seen = Collector()
    engine.add_observer(seen)
    start_s = time.monotonic()
    waiting = deque(zip(map(str, range(len(requests))), requests, arrivals, strict=True))
    while waiting or engine.has_work:
        while waiting and start_s + waiting[0][2] <= time.monotonic():
            name, request, _ = waiting.popleft()
            made = make_request(name, request.prompt, request.max_tokens)
            params = replace(made.sampling, detokenize=False)
            engine.add(request.prompt, params, request_id=name)
        if engine.has_work:
            engine.step()
        elif waiting:
            time.sleep(max(0.0, start_s + waiting[0][2] - time.monotonic()))
    # A request that came while a step was being launched has waited since.
    asked = [replace(r, arrival_s=start_s + arrivals[int(r.id)]) for r in seen.requests]
    return summarise(seen.steps, asked, block_size=engine.config.cache.block_size)


def num_alike(recording: Recording, *, is_overlapped: bool = True) -> int:
    """Simulate a recording with its own times; return how many steps from the first on are alike.

    Requests must end by length or by an id: stop strings and aborts are not simulated.
    """
    outputs = Replay(recording).run().outputs
    scheduler = Scheduler(recording.limits, recording.cache)
    simulation = Simulation(
        scheduler, recording.requests(), RecordedTiming(recording), is_overlapped=is_overlapped,
        draw=lambda request, index, position: outputs[request.id, index][position],
    )  # fmt: skip
    for number, event in enumerate(recording.of("schedule")):
        work = simulation.step() if simulation.has_work else None
        chunks = step_to_json(work)["chunks"] if work else []
        if chunks != event["chunks"]:
            return number
    return recording.num_steps


def rows_of(found: Comparison) -> list[str]:
    """Return the report's lines."""
    throughput, ttft = found.errors
    return [
        title(found.name),
        row("Steps:", found.num_steps),
        row("Decided alike with the recorded times:", found.num_alike),
        row("Real throughput (tok/s):", found.real.throughput),
        row("Simulated throughput (tok/s):", found.simulated.throughput),
        row("Error (%):", 100 * throughput),
        row("Real mean TTFT (s):", found.real.ttft_mean_s),
        row("Simulated mean TTFT (s):", found.simulated.ttft_mean_s),
        row("Error (%):", 100 * ttft),
    ]


def _within(request: BenchRequest, vocab: int, engine: "Engine") -> BenchRequest:
    """Bring a request of W3 into a small model's vocabulary and length."""
    room = engine.config.scheduler.max_model_len
    prompt = tuple(token % vocab for token in request.prompt[: room // 2])
    return BenchRequest(prompt, min(request.max_tokens, room - len(prompt)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.bench simulator", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("--num-prompts", type=int, default=64, help="of W3 (default: %(default)s)")
    add("--batches", default="1,4,10,24,40,64", metavar="LIST", help="timed (%(default)s)")
    add("--contexts", default="128,384", metavar="LIST", help="timed (%(default)s)")
    add("--prefills", default="32,64,128,256,512", metavar="LIST", help="timed (%(default)s)")
    add("--num-steps", type=int, default=8, help="timed for each (default: %(default)s)")
    add("--out", type=Path, metavar="FILE", help="append each comparison as a line of JSON")
    add_engine_flags(parser)
    return parser
