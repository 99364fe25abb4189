"""The Mosaic GPU kernels, interpreted on the CPU, equal attention in float64, and no thread races.

The interpreter runs a program's warpgroups and copies side by side and raises an error where two
accesses are not ordered, where a copy leaves its array, and where memory is read before it is
written. Slots that no live token owns are NaN; table entries past a context are far out of range.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_reference import BFLOAT16_TOLERANCE

from pallas_kernels import mosaic
from pallas_kernels.arg_specs import (
    UNUSED_BLOCK,
    AttentionInputs,
    AttentionSpec,
    make_inputs,
    make_sinks,
)
from pallas_kernels.mosaic_decode import paged_decode
from pallas_kernels.oracle import attention as expected

interpreted = pytest.mark.skipif(
    jax.__version_info__ < (0, 11), reason="JAX before 0.11 has no complete Mosaic GPU interpreter"
)

# Outputs of order 1 rounded to 11 bits, from inputs rounded to 11 bits.
FLOAT16_TOLERANCE = 3e-3
# Lengths around the borders of blocks of 16 and of tiles of 64; the last token is padding.
DECODE = AttentionSpec("decode", (1,) * 4, (1, 16, 64, 130), 5, 5, q_heads=3, kv_heads=1)
ONE = AttentionSpec("one", (1,), (70,), 1, 1, q_heads=3, kv_heads=1)
# More tiles than there are buffers.
LONG = replace(ONE, name="long", kv_lens=(330,), block_size=64, head_dim=128)
# A chunk of a prompt in two tiles of 42 queries, a token beside it, and padding.
MIXED = AttentionSpec("mixed", (44, 1), (110, 65), 48, 4, q_heads=3, kv_heads=1)


def attend(function, inputs: AttentionInputs, spec: AttentionSpec, **options) -> np.ndarray:
    rule = {"scale": spec.scale, "window": spec.window, "softcap": spec.softcap}
    call = functools.partial(function, **rule, **options, interpret=True)
    return np.asarray(jax.jit(call)(*inputs), np.float32)


def as_dtype(inputs: AttentionInputs, dtype) -> AttentionInputs:
    return AttentionInputs(*(jnp.asarray(x, dtype) for x in inputs[:3]), *inputs[3:])


@interpreted
def test_decode_in_splits_reads_nothing_past_a_border():
    inputs = as_dtype(make_inputs(DECODE, seed=2), jnp.bfloat16)
    got = attend(paged_decode, inputs, DECODE, num_splits=2)
    want = expected(make_inputs(DECODE, seed=2), DECODE)
    np.testing.assert_allclose(got, want, atol=BFLOAT16_TOLERANCE)


SHAPES = (
    replace(ONE, name="blocks of 8, head 128", block_size=8, head_dim=128),
    replace(ONE, name="blocks of 32, group 16, capped", block_size=32, q_heads=16, softcap=2.0),
    replace(ONE, name="blocks of 64, group 12", block_size=64, q_heads=24, kv_heads=2),
    replace(ONE, name="blocks of 128, group 32", block_size=128, q_heads=32, kv_lens=(135,)),
)


@interpreted
@pytest.mark.parametrize("spec", SHAPES, ids=lambda spec: spec.name)
def test_decode_takes_every_shape(spec):
    inputs = make_inputs(spec, seed=2)
    got = attend(mosaic.paged_attention, as_dtype(inputs, jnp.float16), spec)
    np.testing.assert_allclose(got, expected(inputs, spec), atol=FLOAT16_TOLERANCE)


@interpreted
@pytest.mark.parametrize("queries", [1, 2], ids=["decode", "prefill"])
def test_a_buffer_is_not_filled_again_before_it_is_read(queries):
    spec = replace(LONG, query_lens=(queries,), num_tokens=queries)
    inputs = make_inputs(spec, seed=2)
    options = {"num_splits": 1} if queries == 1 else {}
    function = paged_decode if queries == 1 else mosaic.paged_attention
    got = attend(function, as_dtype(inputs, jnp.bfloat16), spec, **options)
    np.testing.assert_allclose(got, expected(inputs, spec), atol=BFLOAT16_TOLERANCE)


@interpreted
@pytest.mark.parametrize("block_size", [16, 128])
def test_what_lies_before_the_window_is_not_read(block_size):
    spec = replace(ONE, window=70, block_size=block_size, kv_lens=(199,))
    inputs = make_inputs(spec, seed=2)
    want = expected(inputs, spec)
    inputs.block_tables[0, : (199 - 70) // block_size] = UNUSED_BLOCK
    got = attend(paged_decode, as_dtype(inputs, jnp.bfloat16), spec)
    np.testing.assert_allclose(got, want, atol=BFLOAT16_TOLERANCE)


@interpreted
def test_sinks_count_once_however_many_the_splits():
    inputs, sinks = make_inputs(ONE, seed=2), make_sinks(ONE)
    options = {"sinks": jnp.asarray(sinks), "num_splits": 2}
    got = attend(paged_decode, as_dtype(inputs, jnp.bfloat16), ONE, **options)
    np.testing.assert_allclose(got, expected(inputs, ONE, sinks), atol=BFLOAT16_TOLERANCE)


PREFILLS = (
    MIXED,
    replace(MIXED, name="in a window", window=20, softcap=2.0),
    replace(MIXED, name="head 128, group 8", q_heads=8, head_dim=128, kv_lens=(44, 65)),
    replace(MIXED, name="blocks of 128, group 4", q_heads=8, kv_heads=2, block_size=128),
)


@interpreted
@pytest.mark.parametrize("spec", PREFILLS, ids=lambda spec: spec.name)
def test_prefill_reads_nothing_past_a_border(spec):
    inputs = make_inputs(spec, seed=2)
    got = attend(mosaic.paged_attention, as_dtype(inputs, jnp.bfloat16), spec)
    np.testing.assert_allclose(got, expected(inputs, spec), atol=BFLOAT16_TOLERANCE)


def test_sinks_of_a_prefill_are_refused():
    inputs = as_dtype(make_inputs(MIXED, seed=2), jnp.bfloat16)
    with pytest.raises(NotImplementedError, match="sinks with several queries"):
        attend(mosaic.paged_attention, inputs, MIXED, sinks=jnp.zeros(3))


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        ({"head_dim": 80}, "head_dim 80"),
        ({"q_heads": 33}, "33 query heads"),
        ({"block_size": 20}, "block_size 20"),
    ],
)
def test_a_shape_that_is_not_taken_is_named(change, limit):
    spec = replace(DECODE, **change)
    with pytest.raises(NotImplementedError, match=limit):
        attend(mosaic.paged_attention, as_dtype(make_inputs(spec, seed=2), jnp.bfloat16), spec)


def test_a_type_that_is_not_taken_is_named():
    inputs = make_inputs(DECODE, seed=2)
    with pytest.raises(NotImplementedError, match="queries are float32, not of 16 bits"):
        attend(mosaic.paged_attention, inputs, DECODE)
    mixed = as_dtype(make_inputs(DECODE, seed=2), jnp.bfloat16)._replace(
        q=jnp.asarray(inputs.q, jnp.float16)
    )
    with pytest.raises(NotImplementedError, match="float16 but the pool is bfloat16"):
        attend(mosaic.paged_attention, mixed, DECODE)


@pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="JAX 0.11 has the interpreter")
def test_an_older_jax_is_told_that_it_cannot_interpret():
    with pytest.raises(NotImplementedError, match="needs JAX"):
        attend(mosaic.paged_attention, as_dtype(make_inputs(DECODE, seed=2), jnp.bfloat16), DECODE)
