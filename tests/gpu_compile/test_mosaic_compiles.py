"""The Mosaic GPU kernels on an H200: registers, shared memory, tensor cores, bulk copies."""

import pytest
from gpu_programs import attention_program

from paged_jax.bench.machine_code import KernelReport

mosaic = pytest.importorskip("pallas_kernels.mosaic")


def mosaic_kernel(compiled, name: str, **shape) -> KernelReport:
    report = compiled(attention_program(mosaic.paged_attention, name=f"mosaic {name}", **shape))
    return next(kernel for kernel in report.kernels if kernel.name.startswith("paged_"))


@pytest.mark.parametrize(("head_dim", "registers"), [(64, 116), (128, 120)])
def test_decode_stays_within_its_bounds(compiled, head_dim, registers) -> None:
    kernel = mosaic_kernel(compiled, f"decode, head {head_dim}", tokens=32, head_dim=head_dim)

    assert kernel.spill_bytes == 0
    assert kernel.registers <= registers
    assert kernel.blocks_per_sm >= 2


def test_a_group_of_32_does_not_spill(compiled) -> None:
    kernel = mosaic_kernel(compiled, "decode, group 32", tokens=32, q_heads=256)

    assert kernel.spill_bytes == 0
    assert kernel.registers <= 184


@pytest.mark.parametrize("head_dim", [64, 128])
def test_prefill_stays_within_its_bounds(compiled, head_dim) -> None:
    kernel = mosaic_kernel(compiled, f"prefill, head {head_dim}", tokens=512, head_dim=head_dim)

    assert kernel.spill_bytes == 0
    assert kernel.registers <= 168  # three warpgroups share an SM's registers
    assert kernel.blocks_per_sm >= 1


def test_a_window_and_a_cap_do_not_make_prefill_spill(compiled) -> None:
    rule = {"window": 1024, "softcap": 30.0}
    kernel = mosaic_kernel(compiled, "prefill, window and cap", tokens=512, **rule)

    assert kernel.spill_bytes == 0


@pytest.mark.parametrize(("name", "tokens"), [("decode", 32), ("prefill", 512)])
def test_pools_are_read_in_place(compiled, name, tokens) -> None:
    program = attention_program(
        mosaic.paged_attention, name=f"mosaic {name}, head 128", tokens=tokens
    )

    assert compiled(program).copies == ()


def test_decode_uses_wgmma_and_bulk_copies(compiled) -> None:
    kernel = mosaic_kernel(compiled, "decode, head 128", tokens=32)

    assert kernel.opcodes, "needs nvdisasm: pip install nvidia-cuda-nvdisasm"
    assert kernel.count("HGMMA") >= 16
    assert kernel.count("UTMALDG") >= 9  # queries, and keys and values in four blocks


def test_prefill_uses_wgmma_and_bulk_copies(compiled) -> None:
    kernel = mosaic_kernel(compiled, "prefill, head 128", tokens=512)

    assert kernel.count("HGMMA") >= 12
    assert kernel.count("UTMALDG") >= 10
