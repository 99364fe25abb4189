"""From the lines of `bench compare` to the table of the README: medians, ratios, machine, versions.

`python -m paged_jax.bench results_table FILE` prints it.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from paged_jax.bench.workloads import WORKLOADS

MAX_OTHERS = 0.05  # a run in which others took more of the machine is disturbed
OWN = "paged_jax"
Record = dict


def main(arguments: list[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m paged_jax.bench results_table", description=__doc__
    )
    parser.add_argument("file", type=Path, help="what compare wrote")
    print(markdown(read_results(parser.parse_args(arguments).file)))


def read_results(path: Path) -> list[Record]:
    """Return the records of a file; none if it does not exist yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def summary_line(record: Record) -> str:
    """Return one result as a line."""
    others = 100 * record["others_cpu_share"]
    return (
        f"rep {record['rep']} {record['backend']:<12} {record['workload']:<4} "
        f"{record['output_throughput']:8.1f} output tokens/s, TTFT mean "
        f"{record['mean_ttft_ms']:.0f} ms, ITL p50 {record['median_itl_ms']:.1f} ms, "
        f"failed {record['failed']}, others {others:.1f} %"
    )


def markdown(records: Sequence[Record]) -> str:
    """Return the table: output tokens/s, median (min-max); the last row is our ratio to the best
    peer.
    """
    backends = list(dict.fromkeys(record["backend"] for record in records))
    loads = [name for name in WORKLOADS if any(r["workload"] == name for r in records)]
    cells = {(b, w): _rates(records, b, w) for b in backends for w in loads}
    head = ["output tokens/s", *(f"{name}: {WORKLOADS[name].text}" for name in loads)]
    rows = [[_label(records, b), *(_cell(cells[b, w]) for w in loads)] for b in backends]
    if OWN in backends and len(backends) > 1:
        rows.append(["**paged_jax / best peer**", *(_ratio(cells, backends, w) for w in loads)])
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join([*lines, "", _caption(records)])


def _rates(records: Sequence[Record], backend: str, load: str) -> list[float]:
    """Return the rates of complete runs: the undisturbed ones, or all where there are none."""
    mine = [
        record for record in records
        if record["backend"] == backend and record["workload"] == load and not record["failed"]
    ]  # fmt: skip
    clean = [record for record in mine if record["others_cpu_share"] <= MAX_OTHERS]
    return [record["output_throughput"] for record in clean or mine]


def _cell(rates: list[float]) -> str:
    if not rates:
        return "-"
    return f"{median(rates):.0f} ({min(rates):.0f}-{max(rates):.0f})"


def _ratio(cells: dict, backends: Sequence[str], load: str) -> str:
    peers = [median(cells[b, load]) for b in backends if not b.startswith(OWN) and cells[b, load]]
    own = cells[OWN, load]
    return f"**{median(own) / max(peers):.2f}**" if own and peers else "-"


def _label(records: Sequence[Record], backend: str) -> str:
    record = next(record for record in records if record["backend"] == backend)
    version = str(record.get("backend_version", ""))
    shown = "" if "/" in version else f" {version}"
    return f"{backend}{shown}, {record['dtype']}"


def _caption(records: Sequence[Record]) -> str:
    last = records[-1]
    clean = sum(record["others_cpu_share"] <= MAX_OTHERS for record in records)
    failed = sum(record["failed"] for record in records)
    return (
        f"{last['cores']} cores of {last['cpu']}; SmolLM2-135M-Instruct, same token ids, greedy, "
        f"exact lengths, {last['threads']} threads; paged_jax at {last['commit']}, jax "
        f"{last['jax']}; {last['date'][:10]}. Medians (min-max) of up to "
        f"{1 + max(record['rep'] for record in records)} repetitions, engines alternating, every "
        f"one in a fresh process. {clean} of {len(records)} runs undisturbed (others took at most "
        f"5 % of the CPU); {failed} failed requests."
    )
