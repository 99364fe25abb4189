"""What the machine is, and what processes take of it. Reads /proc, so on Linux only."""

import os
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuTimes:
    """Seconds of CPU used since the machine's start: by all, and by a process with its children."""

    at_s: float
    busy_s: float
    own_s: float


def cpu_times(pid: int) -> CpuTimes:
    """Read the CPU's clocks now."""
    first = (PROC / "stat").read_text().split("\n", 1)[0]
    ticks = [int(word) for word in first.split()[1:9]]
    busy = sum(ticks) - ticks[3] - ticks[4]  # without idle and waiting for a disk
    own = sum(sum(map(int, _stat(each)[11:15])) for each in process_tree(pid))
    return CpuTimes(time.perf_counter(), busy / TICKS_PER_S, own / TICKS_PER_S)


def cpu_shares(before: CpuTimes, after: CpuTimes) -> dict[str, float]:
    """Return how many cores the process used, and the share of the machine that others took."""
    seconds = max(after.at_s - before.at_s, 1e-9)
    own = after.own_s - before.own_s
    others = max(0.0, after.busy_s - before.busy_s - own)
    return {
        "own_cores": own / seconds,
        "others_cpu_share": others / seconds / (os.cpu_count() or 1),
    }


def process_tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    parents = {int(path.name): _parent(int(path.name)) for path in PROC.glob("[0-9]*")}
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sorted(family)


def peak_rss_bytes(pid: int) -> int:
    """Return the peak resident memory of a process and its descendants, added up."""
    return sum(_peak_rss_bytes(each) for each in process_tree(pid))


def machine_facts() -> dict[str, str | int]:
    """Return what a figure depends on: CPU, cores, versions, commit, date."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "jax": _version("jax"),
        "paged_jax": _version("paged_jax"),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def commit() -> str:
    """Return the commit of this checkout; "" outside one."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()


def thread_environment(threads: int) -> Mapping[str, str]:
    """Return variables that hold the usual numerical libraries to so many threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {name: str(threads) for name in names}


def _stat(pid: int) -> list[str]:
    """Return the fields of a process after its name; zeros if it has just ended."""
    try:
        return (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ["0"] * 20


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _peak_rss_bytes(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def _cpu_name() -> str:
    lines = (PROC / "cpuinfo").read_text().splitlines()
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), "?")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
