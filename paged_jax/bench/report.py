"""Reports as text for people, spaced as vLLM's, and as JSON files for programs."""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from paged_jax.bench.metrics import METRICS, Figures, Outcome

WIDTH = 50
EXTRAS = {
    "peak_rss_bytes": ("Peak memory (MiB):", 1 / (1 << 20)),
    "kv_slot_use_mean": ("KV slots holding a token, mean (%):", 100.0),
    "kv_slot_use_max": ("KV slots holding a token, max (%):", 100.0),
    "kv_cache_usage_mean": ("KV pool allocated, mean (%):", 100.0),
    "kv_cache_usage_max": ("KV pool allocated, max (%):", 100.0),
    "prefix_hit_rate": ("Prefix cache hit rate (%):", 100.0),
    "num_compilations": ("Compilations after warm-up:", 1.0),
    "own_cores": ("CPU cores used:", 1.0),
    "others_cpu_share": ("CPU taken by others (%):", 100.0),
}


def row(label: str, value: float | int | str | None) -> str:
    """Return a label and a value in columns of 40 and 10."""
    if value is None:
        return f"{label:<40} {'n/a':<10}"
    if isinstance(value, float):
        return f"{label:<40} {value:<10.2f}"
    return f"{label:<40} {value:<10}"


def title(text: str, fill: str = "=") -> str:
    """Return a line with a text in its middle."""
    return f"{f' {text} ' if text else '':{fill}^{WIDTH}}"


def extra_rows(figures: Figures) -> list[str]:
    """Return memory, KV use, prefix hits and compilations; n/a where the back end does not tell."""
    rows = [title("Memory and cache", "-")]
    for key, (label, scale) in EXTRAS.items():
        value = figures.get(key)
        is_count = key == "num_compilations"
        rows.append(row(label, value if value is None or is_count else value * scale))
    return rows


def metric_rows(figures: Figures, names: Sequence[str], percentiles: Sequence[float]) -> list[str]:
    """Return a section of mean, median and percentiles for each metric."""
    rows: list[str] = []
    for name in names:
        short = name.upper()
        rows.append(title(METRICS[name], "-"))
        rows.append(row(f"Mean {short} (ms):", figures[f"mean_{name}_ms"]))
        rows.append(row(f"Median {short} (ms):", figures[f"median_{name}_ms"]))
        rows += [
            row(f"P{percent:g} {short} (ms):", figures[f"p{percent:g}_{name}_ms"])
            for percent in percentiles
            if percent != 50  # the median
        ]
    return rows


def exit_if_failed(outcomes: Sequence[Outcome]) -> None:
    """Print why requests failed, most frequent reason first, and end with code 1 if any did."""
    reasons = Counter(outcome.error for outcome in outcomes if outcome.error is not None)
    for reason, count in reasons.most_common(5):
        print(f"{count} failed: {reason}", file=sys.stderr)
    if reasons:
        sys.exit(1)


def write_json(path: Path, record: Mapping[str, object]) -> None:
    """Write one JSON object, making the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")


def append_json(path: Path, record: Mapping[str, object]) -> None:
    """Append one line of JSON, making the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
