"""The Triton kernels on an H200: registers, shared memory, tensor cores, asynchronous loads."""

import pytest
from gpu_programs import attention_program, quant_program

from paged_jax.bench.machine_code import ASYNC_LOADS, TENSOR_CORES, KernelReport

triton = pytest.importorskip("pallas_kernels.triton")
quant_matmul = pytest.importorskip("pallas_kernels.quant_matmul")

PREFILL_TOKENS = 512


def watched_kernel(report, name: str) -> KernelReport:
    return next(kernel for kernel in report.kernels if kernel.name.startswith(name))


@pytest.mark.parametrize(
    ("head_dim", "registers", "blocks_per_sm"),
    [(64, 84, 6), (80, 100, 5), (96, 100, 5), (128, 100, 5), (256, 168, 3)],
)
def test_decode_stays_within_its_bounds(compiled, head_dim, registers, blocks_per_sm) -> None:
    name = f"decode, head {head_dim}"
    program = attention_program(triton.paged_attention, name=name, tokens=32, head_dim=head_dim)

    kernel = watched_kernel(compiled(program), "paged_decode")

    assert kernel.spill_bytes == 0
    assert kernel.registers <= registers
    assert kernel.blocks_per_sm >= blocks_per_sm


@pytest.mark.parametrize("pool_dtype", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize(
    ("head_dim", "registers", "blocks_per_sm"), [(64, 100, 5), (128, 128, 4), (256, 168, 3)]
)
def test_decode_of_one_byte_pools_stays_within_its_bounds(
    compiled, head_dim, registers, blocks_per_sm, pool_dtype
) -> None:
    program = attention_program(
        triton.paged_attention,
        name=f"decode, head {head_dim}, {pool_dtype}",
        tokens=32,
        head_dim=head_dim,
        pool_dtype=pool_dtype,
    )

    kernel = watched_kernel(compiled(program), "paged_decode")

    assert kernel.spill_bytes == 0
    assert kernel.registers <= registers
    assert kernel.blocks_per_sm >= blocks_per_sm
    assert kernel.count(*TENSOR_CORES) > 0


def test_a_step_of_prompts_and_single_tokens_runs_both_kernels_and_copies_nothing(compiled) -> None:
    program = attention_program(
        triton.paged_attention, name="mixed, head 128", tokens=PREFILL_TOKENS, max_blocks=512
    )

    report = compiled(program)

    assert watched_kernel(report, "paged_decode") and watched_kernel(report, "paged_prefill")
    assert report.copies == ()


@pytest.mark.parametrize(("head_dim", "registers"), [(64, 144), (128, 200), (256, 212)])
def test_prefill_stays_within_its_bounds(compiled, head_dim, registers) -> None:
    name, tokens = f"prefill, head {head_dim}", PREFILL_TOKENS
    program = attention_program(triton.paged_attention, name=name, tokens=tokens, head_dim=head_dim)

    kernel = watched_kernel(compiled(program), "paged_prefill")

    assert kernel.spill_bytes == 0
    assert kernel.registers <= registers
    assert kernel.count("HGMMA") > 0


@pytest.mark.parametrize(("name", "tokens"), [("paged_decode", 32), ("paged_prefill", 512)])
def test_attention_uses_tensor_cores_and_asynchronous_loads(compiled, name, tokens) -> None:
    label = {"paged_decode": "decode", "paged_prefill": "prefill"}[name]
    program = attention_program(triton.paged_attention, name=f"{label}, head 128", tokens=tokens)

    kernel = watched_kernel(compiled(program), name)

    assert kernel.opcodes, "needs nvdisasm: pip install nvidia-cuda-nvdisasm"
    assert kernel.count(*TENSOR_CORES) > 0
    assert kernel.count(*ASYNC_LOADS) > 0


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [1, 16, 64, 256])
def test_quantised_product_stays_within_its_bounds(compiled, bits, rows) -> None:
    report = compiled(quant_program(quant_matmul.quant_matmul, rows=rows, bits=bits))

    kernel = watched_kernel(report, "quant_matmul")

    assert kernel.spill_bytes == 0
    assert kernel.blocks_per_sm >= 1
    assert report.temp_bytes < 4096 * 14336, "the weights are written out"
    assert kernel.count(*TENSOR_CORES) > 0
