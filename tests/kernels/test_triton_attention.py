"""The Triton kernels, interpreted on the CPU, equal attention in float64 on every named shape.

Every slot that no live token owns is NaN and every table entry past a context is far out of range,
so that one load too many shows.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_reference import BFLOAT16_TOLERANCE, FLOAT32_TOLERANCE, SINK_SPECS, SPECS, make_narrow

from pallas_kernels import triton
from pallas_kernels.arg_specs import (
    ATTENTION_SPECS,
    DECODE,
    DECODE_BORDERS,
    MIXED,
    PREFILL_BORDERS,
    AttentionInputs,
    AttentionSpec,
    make_inputs,
    make_sinks,
)
from pallas_kernels.decode import paged_decode
from pallas_kernels.mixed import paged_mixed
from pallas_kernels.oracle import attention as expected
from pallas_kernels.prefill import paged_prefill

# Outputs of order 1 rounded to 11 bits, from inputs rounded to 11 bits.
FLOAT16_TOLERANCE = 3e-3
# The interpreted kernels take long to compile and next to nothing to run.
QUICK_TO_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def attend(function, inputs: AttentionInputs, spec: AttentionSpec, **options) -> np.ndarray:
    rule = {"scale": spec.scale, "window": spec.window, "softcap": spec.softcap}
    interpreted = functools.partial(function, **rule, **options, interpret=True)
    return np.asarray(jax.jit(interpreted, compiler_options=QUICK_TO_COMPILE)(*inputs), np.float32)


def as_dtype(inputs: AttentionInputs, dtype) -> AttentionInputs:
    return AttentionInputs(*(jnp.asarray(x, dtype) for x in inputs[:3]), *inputs[3:])


@pytest.mark.parametrize("spec", ATTENTION_SPECS, ids=lambda spec: spec.name)
def test_triton_attention_equals_numpy(spec):
    inputs = make_inputs(spec, seed=2)
    got = attend(triton.paged_attention, inputs, spec)
    np.testing.assert_allclose(got, expected(inputs, spec), atol=FLOAT32_TOLERANCE)


@pytest.mark.parametrize(
    ("function", "spec"),
    [(paged_decode, MIXED), (paged_prefill, DECODE), (paged_mixed, DECODE)],
    ids=["decode", "prefill", "mixed"],
)
def test_each_kernel_is_right_where_the_other_would_be_faster(function, spec):
    inputs = make_inputs(spec, seed=3)
    got = attend(function, inputs, spec)
    np.testing.assert_allclose(got, expected(inputs, spec), atol=FLOAT32_TOLERANCE)


@pytest.mark.parametrize("name", SINK_SPECS)
def test_sinks_add_to_what_the_weights_are_divided_by(name):
    spec = SPECS[name]
    inputs, sinks = make_inputs(spec, seed=10), make_sinks(spec)
    got = attend(triton.paged_attention, inputs, spec, sinks=jnp.asarray(sinks))
    np.testing.assert_allclose(got, expected(inputs, spec, sinks), atol=FLOAT32_TOLERANCE)


def test_sinks_count_once_however_many_the_splits():
    inputs, sinks = make_inputs(DECODE_BORDERS, seed=11), make_sinks(DECODE_BORDERS)
    got = attend(paged_decode, inputs, DECODE_BORDERS, sinks=jnp.asarray(sinks), num_splits=4)
    want = expected(inputs, DECODE_BORDERS, sinks)
    np.testing.assert_allclose(got, want, atol=FLOAT32_TOLERANCE)


@pytest.mark.parametrize("num_splits", [1, 4, 8])
def test_decode_in_splits_reads_nothing_past_a_border(num_splits):
    inputs = make_inputs(DECODE_BORDERS, seed=4)
    half = as_dtype(inputs, jnp.bfloat16)
    got = attend(paged_decode, half, DECODE_BORDERS, num_splits=num_splits)
    np.testing.assert_allclose(got, expected(inputs, DECODE_BORDERS), atol=BFLOAT16_TOLERANCE)


@pytest.mark.parametrize("spec", [MIXED, PREFILL_BORDERS], ids=lambda spec: spec.name)
def test_single_tokens_among_prompts_go_through_the_decode_kernel(spec):
    inputs, sinks = make_inputs(spec, seed=12), make_sinks(spec)
    got = attend(paged_mixed, inputs, spec, sinks=jnp.asarray(sinks))
    np.testing.assert_allclose(got, expected(inputs, spec, sinks), atol=FLOAT32_TOLERANCE)


@pytest.mark.parametrize("window", [None, 64])
def test_prefill_in_a_window_reads_nothing_past_a_border(window):
    spec = replace(PREFILL_BORDERS, window=window)
    inputs = make_inputs(spec, seed=5)
    got = attend(paged_prefill, as_dtype(inputs, jnp.bfloat16), spec)
    np.testing.assert_allclose(got, expected(inputs, spec), atol=BFLOAT16_TOLERANCE)


@pytest.mark.parametrize("window", [17, 64])
def test_what_lies_before_the_window_is_not_read(window):
    spec = replace(DECODE_BORDERS, window=window, block_size=16)
    inputs = make_inputs(spec, seed=6)
    want = expected(inputs, spec)
    for row, length in zip(inputs.block_tables, spec.kv_lens, strict=True):
        row[: max(0, length - window) // spec.block_size] = 1 << 30
    got = attend(paged_decode, inputs, spec)
    np.testing.assert_allclose(got, want, atol=FLOAT32_TOLERANCE)


def test_float16_is_read_from_the_pool():
    inputs = make_inputs(MIXED, seed=7)
    got = attend(triton.paged_attention, as_dtype(inputs, jnp.float16), MIXED)
    np.testing.assert_allclose(got, expected(inputs, MIXED), atol=FLOAT16_TOLERANCE)


def test_the_bits_of_bfloat16_are_read_as_bfloat16():
    spec = DECODE
    inputs = make_inputs(spec, seed=8)
    half = as_dtype(inputs, jnp.bfloat16)
    bits = half._replace(k_pool=half.k_pool.view(jnp.uint16), v_pool=half.v_pool.view(jnp.uint16))
    got = attend(triton.paged_attention, bits, spec)
    np.testing.assert_array_equal(got, attend(triton.paged_attention, half, spec))


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float8_e4m3fn])
@pytest.mark.parametrize("spec", [DECODE_BORDERS, MIXED], ids=lambda spec: spec.name)
def test_one_byte_pools_are_read_with_a_scale_for_each_token_and_head(spec, dtype):
    narrow, scales, restored = make_narrow(make_inputs(spec, seed=9), dtype)
    got = attend(triton.paged_attention, narrow, spec, **scales)
    np.testing.assert_allclose(got, expected(restored, spec), atol=FLOAT32_TOLERANCE)
