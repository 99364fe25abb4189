"""`bench mesh`: one trace of requests on several layouts of devices.

A layout is T (tensor), SxT (stages x tensor) or DxSxT (replicas x stages x tensor). For each: the
collectives of a decode step by kind, from the compiled programs, with the bytes of their results on
each device; memory of the fullest device; the time of a step; and whether the ids are those of the
first layout. Where there are too few devices, a CPU is made into as many as are needed.
"""

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paged_jax.bench.datasets import BenchRequest, Draw, exactly, random_requests
from paged_jax.bench.hlo_traffic import Traffic, added, collectives
from paged_jax.bench.machine import machine_facts
from paged_jax.bench.mesh_picture import Placement, picture, placements
from paged_jax.bench.mesh_picture import table as placement_table
from paged_jax.bench.report import write_json
from paged_jax.config import OptionError
from paged_jax.engine_args import EngineArgs
from paged_jax.flags import add_engine_flags, read_engine_args
from paged_jax.host.trace import RequestRecord, StepRecord

if TYPE_CHECKING:
    from paged_jax.engine.engine import Engine
    from paged_jax.replicas import Replicas

MIB = 1 << 20
BETWEEN_STAGES = "stage to stage"


@dataclass
class StepTimes:
    """An EngineObserver that keeps the seconds of steps without a prompt in them."""

    seconds: list[float] = field(default_factory=list)

    def on_step(self, record: StepRecord) -> None:
        """Note a decode step."""
        if record.num_prompt_tokens == 0 and record.num_generated:
            self.seconds.append(record.duration_s)

    def on_finish(self, record: RequestRecord) -> None:
        """Requests are not looked at."""


@dataclass(frozen=True)
class MeshReport:
    """One layout; bytes are those of the fullest device.

    Attributes:
        traffic: of a decode step of one replica, by kind.
        step_s: median of decode steps; of several replicas at the same time.
        has_same_ids: whether the answers are those of the first layout.
    """

    layout: str
    num_devices: int
    traffic: dict[str, Traffic]
    weights_bytes: int
    pool_bytes: int
    programs_bytes: int
    step_s: float
    output_tokens_per_s: float
    has_same_ids: bool


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = _parser().parse_args(arguments)
    layouts = {text: sizes_of(text) for text in options.meshes.split(",")}
    args = read_engine_args(options)
    make_devices(max(math.prod(sizes) for sizes in layouts.values()))
    reports, pictures, expected = list[MeshReport](), dict[str, list[Placement]](), None
    for layout, sizes in layouts.items():
        report, pictures[layout], ids = measure(with_sizes(args, sizes), layout, options)
        expected = ids if expected is None else expected
        reports.append(replace(report, has_same_ids=ids == expected))
        print(f"mesh {layout}\n{placement_table(pictures[layout])}\n", flush=True)
    print(table(reports))
    if options.picture:
        options.picture.write_text(picture(dict(pictures)))
    if options.output_json:
        write_json(options.output_json, {"meshes": [asdict(r) for r in reports], **machine_facts()})


def sizes_of(text: str) -> tuple[int, int, int]:
    """Read `4`, `2x4` or `2x2x2` as replicas, stages, devices of a layer; raises OptionError."""
    words = text.split("x")
    if len(words) > 3 or not all(word.isdecimal() and int(word) for word in words):
        raise OptionError(f"--meshes is like 1,2,1x4,2x2,2x1x2, not {text!r}")
    data, stage, tensor = (1,) * (3 - len(words)) + tuple(int(word) for word in words)
    return data, stage, tensor


def with_sizes(args: EngineArgs, sizes: tuple[int, int, int]) -> EngineArgs:
    """Return the options of a layout."""
    return replace(
        args,
        data_parallel_size=sizes[0],
        pipeline_parallel_size=sizes[1],
        tensor_parallel_size=sizes[2],
    )


def make_devices(count: int) -> None:
    """Let a CPU be so many devices; without effect once JAX runs, or where there are others."""
    if "jax" not in sys.modules:
        flag = f"--xla_force_host_platform_device_count={count}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()


def measure(
    args: EngineArgs, layout: str, options: argparse.Namespace
) -> tuple[MeshReport, list[Placement], list[list[int]]]:
    """Run the trace on one layout; return also where its arrays lie, and the ids drawn."""
    from paged_jax.build import build_engines  # here, so that --help does not wait for jax
    from paged_jax.replicas import Replicas

    engines = build_engines(args)
    engine, times = engines[0] if len(engines) == 1 else Replicas(engines), StepTimes()
    model = engines[0].config.model
    requests = random_requests(
        Draw(options.num_prompts, model.vocab_limit or model.vocab_size, args.seed),
        input_len=options.input_len,
        output_len=options.output_len,
    )
    try:
        run(engine, requests)  # whatever happens once
        engine.add_observer(times)
        start = time.perf_counter()
        ids = run(engine, requests)
        elapsed_s = time.perf_counter() - start
        seqs = -(-options.num_prompts // len(engines) // engines[0].config.mesh.stage)
        report = MeshReport(
            layout=layout,
            num_devices=engines[0].config.mesh.num_devices,
            traffic=traffic_of(engines[0], seqs),
            **memory_of(engines[0]),
            step_s=statistics.median(times.seconds) if times.seconds else math.nan,
            output_tokens_per_s=sum(map(len, ids)) / elapsed_s,
            has_same_ids=True,
        )
        return report, placements(engines), ids
    finally:
        engine.close()


def run(engine: "Engine | Replicas", requests: Sequence[BenchRequest]) -> list[list[int]]:
    """Answer all requests, greedy and to their exact lengths; return the ids of each."""
    for index, request in enumerate(requests):
        engine.add(request.prompt, exactly(request.max_tokens), request_id=str(index))
    ids: list[list[int]] = [[] for _ in requests]
    while engine.has_work:
        for delta in engine.step():
            if delta.error is not None:
                raise RuntimeError(delta.error)
            ids[int(delta.request_id)] += [t for choice in delta.choices for t in choice.token_ids]
    engine.reset_prefix_cache()
    return ids


def traffic_of(engine: "Engine", num_seqs: int) -> dict[str, Traffic]:
    """Return what the devices exchange in a step of so many sequences, one token each."""
    programs, total = engine.executor.programs, dict[str, Traffic]()
    tokens = min(size for size in programs.token_buckets if size >= num_seqs)
    rows = min(size for size in programs.row_buckets if size >= num_seqs)
    for name, size in programs.compile_seconds:
        is_used = (name.startswith("backbone") and size == tokens) or (name, size) == (
            "draw plain",
            rows,
        )
        if is_used:
            total = added(total, collectives(programs.text((name, size))))
    hops, model = engine.config.mesh.stage - 1, engine.config.model
    if hops:
        item = 4 if model.activation_dtype == "float32" else 2
        total[BETWEEN_STAGES] = Traffic(hops, hops * tokens * model.embed_dim * item)
    return total


def memory_of(engine: "Engine") -> dict[str, int]:
    """Return what weights, pool and programs take on the fullest device."""
    from paged_jax.device.sharding import device_bytes_of

    return {
        "weights_bytes": device_bytes_of(engine.params),
        "pool_bytes": device_bytes_of(engine.executor.pool),
        "programs_bytes": engine.executor.programs.peak_bytes(),
    }


def table(reports: Sequence[MeshReport]) -> str:
    """Return a line for each layout, and one for each kind of its traffic."""
    head = ("mesh", "devices", "weights", "KV pool", "programs", "step", "tokens/s", "same ids")
    lines = ["".join(f"{cell:>12}" for cell in head)]
    for report in reports:
        cells = (
            report.layout,
            str(report.num_devices),
            *(f"{size / MIB:,.2f} MiB" for size in
                (report.weights_bytes, report.pool_bytes, report.programs_bytes)),
            f"{1e3 * report.step_s:.2f} ms",
            f"{report.output_tokens_per_s:.1f}",
            "yes" if report.has_same_ids else "NO",
        )  # fmt: skip
        lines.append("".join(f"{cell:>12}" for cell in cells))
        for kind, each in report.traffic.items():
            lines.append(
                f"{'':>12}  {each.count:>4} x {kind:<20}{each.num_bytes:>12,} bytes a step"
            )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.bench mesh", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("--meshes", default="1,1x2,1x4,2x4", metavar="LIST", help="(default: %(default)s)")
    add("--num-prompts", type=int, default=8, help="(default: %(default)s)")
    add("--input-len", type=int, default=32, help="tokens (default: %(default)s)")
    add("--output-len", type=int, default=16, help="tokens (default: %(default)s)")
    add("--picture", type=Path, metavar="FILE", help="which array lies where, as SVG")
    add("--output-json", type=Path, metavar="FILE")
    add_engine_flags(parser)
    return parser
