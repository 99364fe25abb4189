"""What compiled programs use, as text for people: one row a kernel, one line a program."""

from collections.abc import Iterable, Sequence

from paged_jax.bench.gpu_compile import ProgramReport
from paged_jax.bench.machine_code import ASYNC_LOADS, TENSOR_CORES, KernelReport

HEAD = ("kernel", "grid", "threads", "regs", "spills", "shared", "blocks/SM", "instructions")
MIB = 1 << 20


def kernel_table(programs: Iterable[ProgramReport], watched: tuple[str, ...]) -> str:
    """Return a row for each kernel whose name begins with one of `watched`."""
    rows = [
        _row(f"{program.name}: {kernel.name}", kernel)
        for program in programs
        for kernel in program.kernels
        if kernel.name.startswith(watched)
    ]
    return align([HEAD, *rows])


def program_line(program: ProgramReport) -> str:
    """Return what a whole program needs and starts."""
    spilled = sum(kernel.spill_bytes for kernel in program.kernels)
    return (
        f"{program.name}: {len(program.kernels)} different kernels, {spilled} B of spills, "
        f"{program.num_command_buffers} command buffers, the host starts "
        f"{len(program.sequence)}; aliased {program.alias_bytes / MIB:,.1f} MiB, temporary "
        f"{program.temp_bytes / MIB:,.1f} MiB, {len(program.copies)} copies (largest "
        f"{program.largest_copy} B), {program.all_reduces} all-reduces"
    )


def align(rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows as columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pad = lambda row: "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))  # noqa: E731
    return "\n".join(pad(row).rstrip() for row in rows)


def _row(name: str, kernel: KernelReport) -> tuple[str, ...]:
    counted = {op: kernel.opcodes.get(op, 0) for op in (*TENSOR_CORES, *ASYNC_LOADS)}
    return (
        name,
        "x".join(map(str, kernel.grid)),
        str(kernel.threads),
        str(kernel.registers),
        str(kernel.spill_bytes),
        str(kernel.shared_bytes),
        str(kernel.blocks_per_sm),
        " ".join(f"{op}:{count}" for op, count in counted.items() if count),
    )
