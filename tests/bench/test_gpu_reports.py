"""What the compile check makes of the texts that XLA and NVIDIA's tools write."""

from pathlib import Path

import pytest

from paged_jax.bench import machine_code
from paged_jax.bench.gpu_compile import COPY, LAUNCH, THUNK, ProgramReport, _array_bytes
from paged_jax.bench.gpu_target import H200
from paged_jax.bench.machine_code import KernelReport, Launch, read_kernels
from paged_jax.bench.resource_table import kernel_table, program_line

PTXAS = """ptxas info    : Compiling entry function 'paged_decode' for 'sm_90a'
ptxas info    : Function properties for paged_decode
    0 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 96 registers, used 1 barriers, 1024 bytes smem
"""
LISTING = """
.text.paged_decode:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0020*/                   LDGSTS.E.BYPASS.128 [R2], desc[UR4][R18.64] ;
        /*0030*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
"""
RUN_LIST = """000: kCommandBuffer [source       | next=015 (1)]
    001: kCustomKernel [sink] decode grid: [8, 32, 6] threads: [128, 1, 1]  shared_memory: 38144
002: kWhile         [prev=000 (1) | next=000 (1)]
"""


@pytest.fixture
def kernel(monkeypatch, tmp_path: Path) -> KernelReport:
    ptx = tmp_path / "kernel.1.ptx"
    ptx.write_text(".visible .entry paged_decode(\n)\n.reqntid 128\n{}")
    monkeypatch.setattr(machine_code, "_assemble", lambda *_, is_listed: (PTXAS, LISTING))
    launches = {"paged_decode": Launch((8, 32, 6), 128, 38144)}
    return next(read_kernels(ptx, launches, H200, watched=("paged_",)))


def test_registers_spills_and_shared_memory_are_read(kernel) -> None:
    assert (kernel.registers, kernel.spill_bytes, kernel.shared_bytes) == (96, 20, 39168)


def test_instructions_are_counted_with_and_without_a_predicate(kernel) -> None:
    assert kernel.count("HMMA") == 2
    assert kernel.count("LDGSTS", "UTMALDG") == 1


def test_blocks_per_sm_are_what_registers_and_shared_memory_allow(kernel) -> None:
    assert kernel.blocks_per_sm == min(65536 // (96 * 128), 233472 // (39168 + 1024))


def test_the_run_list_tells_the_order_and_the_launches() -> None:
    top = [kind for indent, kind in THUNK.findall(RUN_LIST) if not indent]

    assert top == ["kCommandBuffer", "kWhile"]
    assert LAUNCH.search(RUN_LIST).groups() == ("decode", "8, 32, 6", "128, 1, 1", "38144")


@pytest.mark.parametrize(
    ("line", "num_bytes"),
    [
        ("%c = bf16[32,8]{1,0} copy(%x)", 512),
        ("ROOT %c = f32[] copy(%x)", 4),
        ("%c = pred[7]{0} copy(%x)", 7),
    ],
)
def test_copied_bytes_are_read_from_the_program(line, num_bytes) -> None:
    assert _array_bytes(*COPY.search(line).groups()) == num_bytes


def test_the_tables_show_the_watched_kernels_and_the_program(kernel) -> None:
    report = ProgramReport(
        "step", (kernel,), ("kCommandBuffer",), {"kCommandBuffer": 1}, (8,), 0, 1 << 20, 0
    )

    rows = kernel_table([report], ("paged_",)).splitlines()

    assert "HMMA:2 LDGSTS:1" in rows[1]
    assert kernel_table([report], ("other",)).splitlines()[1:] == []
    assert "1 command buffers" in program_line(report) and "aliased 1.0 MiB" in program_line(report)


def test_the_target_is_described_as_hopper_with_its_own_instructions() -> None:
    text = H200.describe()

    assert 'model_str: "sm_90a"' in text and "ACCELERATED_FEATURES" in text
    assert "core_count: 132" in text
