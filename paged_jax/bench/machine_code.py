"""What the machine code of GPU kernels uses, as told by NVIDIA's assembler and disassembler.

Input is the PTX that XLA and Mosaic GPU leave behind when asked to.
"""

import math
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from paged_jax.bench.gpu_target import GPU, find_tool

WARP = 32
REGISTER_UNIT = 256  # registers are given to a warp in units of this many
TENSOR_CORES = ("HMMA", "HGMMA", "IMMA", "IGMMA", "QGMMA")
ASYNC_LOADS = ("LDGSTS", "UTMALDG")


@dataclass(frozen=True)
class Launch:
    """How a kernel is started."""

    grid: tuple[int, ...]
    threads: int
    shared_bytes: int


@dataclass(frozen=True)
class KernelReport:
    """What one kernel uses.

    Attributes:
        registers: of each thread.
        spill_bytes: stores and loads of registers that did not fit.
        shared_bytes: static and dynamic.
        blocks_per_sm: how many fit side by side; an upper bound.
        opcodes: how often each instruction occurs; empty if not watched or without nvdisasm.
    """

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    grid: tuple[int, ...]
    threads: int
    blocks_per_sm: int
    opcodes: Mapping[str, int]

    def count(self, *opcodes: str) -> int:
        """Return how many instructions are one of `opcodes`."""
        return sum(self.opcodes.get(opcode, 0) for opcode in opcodes)


def read_kernels(
    ptx: Path, launches: Mapping[str, Launch], gpu: GPU, *, watched: tuple[str, ...]
) -> Iterator[KernelReport]:
    """Assemble one PTX file; yield its kernels.

    Args:
        launches: by kernel name; a kernel without one reports no grid.
        watched: beginnings of the names whose instructions are counted (half a second each).
    Raises:
        RuntimeError: ptxas rejects the file.
    """
    text = ptx.read_text()
    names = re.findall(r"\.entry (\w+)", text)
    if not names:
        return
    log, listing = _assemble(ptx, gpu, is_listed=any(name.startswith(watched) for name in names))
    for part in log.split("Compiling entry function '")[1:]:
        name = part.split("'")[0]
        launch = launches.get(name) or Launch((), _declared_threads(text, name), 0)
        yield _report(part, name, launch, listing, gpu)


def _report(log: str, name: str, launch: Launch, listing: str, gpu: GPU) -> KernelReport:
    registers = _number(r"Used (\d+) registers", log)
    shared_bytes = _number(r"(\d+) bytes smem", log) + launch.shared_bytes
    stores, loads = (_number(rf"(\d+) bytes spill {what}", log) for what in ("stores", "loads"))
    return KernelReport(
        name=name,
        registers=registers,
        spill_bytes=stores + loads,
        shared_bytes=shared_bytes,
        grid=launch.grid,
        threads=launch.threads,
        blocks_per_sm=_blocks_per_sm(registers, shared_bytes, launch.threads, gpu),
        opcodes=_opcodes(listing, name),
    )


def _assemble(ptx: Path, gpu: GPU, *, is_listed: bool) -> tuple[str, str]:
    """Return ptxas's report and, if asked for and nvdisasm is there, the machine code as text."""
    ptxas, nvdisasm = find_tool("ptxas"), find_tool("nvdisasm")
    assert ptxas, "no ptxas; ask missing() first"
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        command = [ptxas, "-v", f"-arch={gpu.arch}", ptx, "-o", cubin]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"ptxas rejects {ptx.name}: {done.stderr}")
        if nvdisasm is None or not is_listed:
            return done.stderr, ""
        listing = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True)
    return done.stderr, listing.stdout


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def _declared_threads(ptx: str, name: str) -> int:
    """Threads of a block, as the kernel's head declares them; 0 if it does not."""
    head = ptx[ptx.index(f".entry {name}") :]
    found = re.search(r"\.(?:req|max)ntid (\d+)(?:, (\d+))?(?:, (\d+))?", head)
    return math.prod(int(size or 1) for size in found.groups()) if found else 0


def _blocks_per_sm(registers: int, shared_bytes: int, threads: int, gpu: GPU) -> int:
    if not (registers and threads):
        return 0
    warps = -(-threads // WARP)
    warp_registers = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    return min(
        gpu.registers // (warp_registers * warps),
        gpu.shared_bytes // (shared_bytes + gpu.reserved_shared_bytes),
        gpu.max_threads // (warps * WARP),
        gpu.max_blocks,
    )


def _opcodes(listing: str, name: str) -> Mapping[str, int]:
    sections = re.split(r"\n\s*\.text\.", listing)
    mine = next((section for section in sections if section.startswith(f"{name}:")), "")
    instruction = r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)"
    return Counter(re.findall(instruction, mine))
