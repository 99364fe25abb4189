"""Whole steps of an 8B model on an H200: what they copy, hold and start."""

import jax
import jax.numpy as jnp
import pytest
from gpu_programs import (
    divided_draw,
    divided_mlp,
    divided_stage,
    divided_step,
    draw_program,
    engine_program,
    step_program,
)

from paged_jax.bench.gpu_compile import Program, ProgramReport

MIB = 1 << 20
NUM_LAYERS = 32
COLLECTIVES = ("kAllReduce", "kAllGather", "kAllToAll", "kReduceScatter", "kCollectivePermute")


STEPS = {
    "decode, 2 layers": (2, 32, "auto"),
    "decode, 2 layers, int8 pool": (2, 32, "int8"),
    "decode, 2 layers, fp8 pool": (2, 32, "fp8"),
    "decode, 32 layers": (32, 32, "auto"),
    "mixed, 2 layers": (2, 512, "auto"),
}


@pytest.fixture(params=STEPS)
def step(request, compiled) -> tuple[ProgramReport, int]:
    """A step and the bytes of its pool."""
    num_layers, tokens, kv_dtype = STEPS[request.param]
    program, pool_bytes = step_program(num_layers, tokens=tokens, kv_dtype=kv_dtype)
    return compiled(program), pool_bytes


def test_the_pool_is_updated_in_place(step) -> None:
    report, pool_bytes = step

    assert report.alias_bytes == pool_bytes


def test_nothing_is_copied_neither_pool_nor_weights(step) -> None:
    report, _ = step

    assert report.copies == ()
    assert report.thunks.get("kCopy", 0) == 0


def test_the_host_starts_one_command_buffer_and_nothing_else(step) -> None:
    report, _ = step

    assert report.sequence == ("kCommandBuffer",)
    assert report.num_command_buffers == 1


@pytest.mark.parametrize("make", [engine_program, draw_program])
def test_drawing_is_in_the_command_buffer(compiled, make) -> None:
    assert compiled(make()).sequence == ("kCommandBuffer",)


def test_temporary_memory_is_one_layers_activations(step) -> None:
    report, _ = step
    is_decode = "paged_decode" in {kernel.name for kernel in report.kernels}

    assert report.temp_bytes < (32 * MIB if is_decode else 64 * MIB)


def test_no_kernel_spills(step) -> None:
    report, _ = step

    assert [kernel.name for kernel in report.kernels if kernel.spill_bytes] == []


@pytest.fixture
def divided(compiled) -> tuple[ProgramReport, int]:
    """The whole decode step over 4 GPUs, and the bytes of each one's pool."""
    program, pool_bytes = divided_step(NUM_LAYERS)
    return compiled(program), pool_bytes


def test_a_step_over_4_gpus_sums_twice_a_layer_and_once_for_the_embedding(divided) -> None:
    report, _ = divided

    assert report.all_reduces == 2 * NUM_LAYERS + 1
    assert {kind for kind in report.thunks if kind in COLLECTIVES} == {"kAllReduce"}


def test_a_step_over_4_gpus_copies_nothing_and_updates_its_pool_in_place(divided) -> None:
    report, pool_bytes = divided

    assert report.alias_bytes == pool_bytes
    assert report.copies == ()
    assert report.temp_bytes < 16 * MIB


def test_a_step_over_4_gpus_runs_the_attention_kernel_on_its_own_heads(divided) -> None:
    report, _ = divided
    kernel = next(kernel for kernel in report.kernels if kernel.name == "paged_decode")

    assert kernel.spill_bytes == 0


def test_a_stage_over_4_gpus_sums_twice_a_layer_and_copies_nothing(compiled) -> None:
    program, pool_bytes = divided_stage(4)

    report = compiled(program)

    assert report.all_reduces == 2 * 2
    assert {kind for kind in report.thunks if kind in COLLECTIVES} == {"kAllReduce"}
    assert (report.alias_bytes, report.copies) == (pool_bytes, ())


def test_drawing_over_4_gpus_never_gathers_the_vocabulary(compiled) -> None:
    mixed, greedy = (compiled(divided_draw(is_plain=each)) for each in (False, True))

    assert mixed.thunks["kAllToAll"] == 1
    assert "kAllToAll" not in greedy.thunks
    assert greedy.temp_bytes < 4 * MIB


def test_an_mlp_divided_among_gpus_sums_once(compiled) -> None:
    report = compiled(divided_mlp())

    assert report.all_reduces == 1
    assert report.copies == ()


def test_the_check_sees_a_pool_that_is_not_donated(compiled) -> None:
    pool = jax.ShapeDtypeStruct((1 << 20,), jnp.float32)
    write = lambda pool: pool.at[7].set(1.0)  # noqa: E731

    report = compiled(Program("a write without donation", write, (pool,)))

    assert report.alias_bytes == 0
    assert report.copies == (4 << 20,)
