"""`bench gpu`: are the kernels right on this machine, and how near are they to its limits?

Needs jax and nothing from the network. Every result is written when it is there, as a line of JSON,
so the run may be stopped at any time; it stops itself when its time is over.
"""

import argparse
import json
import os
import platform as machine
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import jax

from paged_jax.bench import numerics, speed, steps, torch_peer
from paged_jax.bench.cases import Accuracy, Case, LeftOut, Measurement
from paged_jax.bench.machine import commit
from paged_jax.bench.resource_table import align
from paged_jax.bench.sizes import FULL, REHEARSAL, Sizes
from paged_jax.compiled.compile_counter import use_compilation_cache

Record = Mapping[str, str | int | float | bool]

HEAD = ("part", "case", "median", "p90", "GB/s", "TFLOP/s", "of the limit", "compile")


@dataclass(frozen=True)
class Part:
    """Cases of one kind; those not begun `until_s` seconds after the start are left out."""

    name: str
    cases: Callable[[Sizes], Iterator[Case]]
    until_s: float


PARTS = (
    Part("numerics", numerics.numerics, 120),
    Part("limits", speed.limits, 140),
    Part("decode", speed.decode, 220),
    Part("prefill", speed.prefill, 250),
    Part("product", speed.products, 290),
    Part("step", steps.steps, 370),
    Part("step", steps.steps_without_graphs, 385),
    Part("peer", torch_peer.peers, 420),
)
LIMIT_S = 470.0  # the process ends itself here, whatever is under way


@dataclass
class Run:
    """One run: what has been found so far, and where it is written.

    Attributes:
        facts: what every record carries: commit, device, versions.
    """

    path: Path
    facts: Record
    start: float = field(default_factory=time.monotonic)
    records: list[Record] = field(default_factory=list)

    def add(self, part: str, case: str, values: Record) -> None:
        """Keep a record, and append it to the file."""
        record = {"part": part, "case": case, **values, **self.facts}
        self.records.append(record)
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def limit(self, case: str, rate: str) -> float | None:
        """Return a measured limit of the device, if it has been measured."""
        found = (r[rate] for r in self.records if r["part"] == "limits" and r["case"] == case)
        return next((value for value in found if isinstance(value, float)), None)


def main(arguments: list[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m paged_jax.bench gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results go")
    parser.add_argument(
        "--rehearse", action="store_true", help="tiny shapes in interpret mode, on any machine"
    )
    options = parser.parse_args(arguments)
    run_gpu(options.out, is_rehearsal=options.rehearse)


def run_gpu(folder: Path, *, is_rehearsal: bool) -> None:
    """Measure everything there is time for; print one table at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    use_compilation_cache(folder / "xla")
    run = Run(folder / "gpu.jsonl", _facts())
    watchdog = threading.Timer(LIMIT_S, _give_up, [run])
    watchdog.daemon = True
    watchdog.start()
    for part in PARTS:
        _run_part(run, part, REHEARSAL if is_rehearsal else FULL)
    watchdog.cancel()
    print(table(run.records))


def table(records: list[Record]) -> str:
    """Return what was measured, a line each; of the numerics only what is wrong."""
    named = [record for record in records if record["part"] == "numerics"]
    checked = [record for record in named if "not_taken" not in record]
    wrong = [record for record in checked if not record.get("is_right")]
    rows = [_row(record) for record in records if record["part"] != "numerics"]
    not_taken = len(named) - len(checked)
    right = len(checked) - len(wrong)
    lines = [f"numerics: {right} of {len(checked)} right, {not_taken} not taken"]
    lines += [f"  WRONG {r['case']} {r['dtype']}: {_reason(r)}" for r in wrong]
    return "\n".join([*lines, align([HEAD, *rows])])


def _run_part(run: Run, part: Part, sizes: Sizes) -> None:
    for case in part.cases(sizes):
        values: Record = {"dtype": case.dtype}
        if time.monotonic() - run.start > part.until_s:
            run.add(part.name, case.name, {**values, "left_out": "no time"})
            continue
        try:
            found = case.run()
        except LeftOut as reason:
            run.add(part.name, case.name, {**values, "left_out": str(reason)})
        except NotImplementedError as limit:
            run.add(part.name, case.name, {**values, "not_taken": str(limit)})
        except Exception as error:  # one case that fails must not cost all others
            run.add(part.name, case.name, {**values, "error": f"{type(error).__name__}: {error}"})
        else:
            run.add(part.name, case.name, {**values, **_values(run, found)})


def _values(run: Run, found: Measurement | Accuracy) -> Record:
    if isinstance(found, Accuracy):
        return {**asdict(found), "is_right": found.is_right}
    seconds = found.timing.median_s
    values = {
        **asdict(found.timing),
        "num_bytes": found.num_bytes,
        "num_flops": found.num_flops,
        "compile_s": found.compile_s,
        "bytes_per_s": found.num_bytes / seconds,
        "flops_per_s": found.num_flops / seconds,
    }
    copy, matmul = run.limit("copy", "bytes_per_s"), run.limit("matmul", "flops_per_s")
    if copy and matmul:
        values["share_of_limit"] = max(found.num_bytes / copy, found.num_flops / matmul) / seconds
    return values


def _row(record: Record) -> tuple[str, ...]:
    name = (str(record["part"]), str(record["case"]))
    if "median_s" not in record:
        return (*name, _reason(record)[:60], "", "", "", "", "")
    number = lambda key, scale: float(record[key]) * scale  # noqa: E731
    share = f"{number('share_of_limit', 100):.0f} %" if "share_of_limit" in record else ""
    return (
        *name,
        f"{number('median_s', 1e6):,.0f} us",
        f"{number('p90_s', 1e6):,.0f} us",
        f"{number('bytes_per_s', 1e-9):,.0f}",
        f"{number('flops_per_s', 1e-12):,.1f}",
        share,
        f"{number('compile_s', 1):.1f} s",
    )


def _reason(record: Record) -> str:
    if "max_error" in record:
        return f"error {record['max_error']} above {record['tolerance']}"
    found = record.get("error") or record.get("left_out") or record.get("not_taken")
    return str(found).splitlines()[0]


def _give_up(run: Run) -> None:
    print(table(list(run.records)), "\nout of time", flush=True)
    os._exit(0)


def _facts() -> Record:
    device = jax.local_devices()[0]
    return {
        "commit": commit(),
        "device": device.device_kind,
        "platform": device.platform,
        "jax": jax.__version__,
        "python": machine.python_version(),
        "day": time.strftime("%Y-%m-%d"),
    }
