"""The engine's door to attention: what was written at slots is what queries read through tables."""

import logging
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paged_jax.device import attention
from paged_jax.device.attention import paged_attention, write_kv


def make_pools(dtype: str) -> tuple[jax.Array, jax.Array]:
    """Seven blocks of 4 tokens, 2 KV heads of 8."""
    fill = np.nan if dtype == "float32" else 0xFFFF  # both are NaN
    pool = jnp.full((7, 4, 2, 8), fill, dtype)
    return pool, pool + jnp.zeros((), dtype)


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_queries_read_back_what_was_written(rng, dtype):
    kind = jnp.float32 if dtype == "float32" else jnp.bfloat16
    k, v = (jnp.asarray(rng.normal(size=(6, 2, 8)), kind) for _ in range(2))
    slots = jnp.array([12, 13, 14, 15, 24, 0], jnp.int32)  # blocks 3 and 6; the last is padding
    pools = jax.jit(write_kv)(*make_pools(dtype), k, v, slots)
    q = jnp.asarray(rng.normal(size=(6, 4, 8)), kind)
    tables, starts = jnp.array([[3, 6, 0]], jnp.int32), jnp.array([0, 5], jnp.int32)
    out = paged_attention(q, *pools, tables, starts, jnp.array([5], jnp.int32), scale=0.5)
    assert out.dtype == kind
    for head in range(4):
        scores = np.float32(q[4, head]) @ np.float32(k[:5, head // 2]).T * 0.5
        weights = np.exp(scores) / np.exp(scores).sum()
        want = weights @ np.float32(v[:5, head // 2])
        np.testing.assert_allclose(np.float32(out[4, head]), want, atol=1e-2)
    np.testing.assert_array_equal(out[0], jnp.repeat(v[0], 2, axis=0))
    assert not out[5].any()


def test_a_sink_of_a_heads_only_score_halves_its_output():
    pool, q = jnp.ones((3, 4, 2, 8), jnp.float32), jnp.ones((2, 4, 8), jnp.float32)
    ints = jnp.array([[1, 2]], jnp.int32), jnp.array([0, 1], jnp.int32), jnp.array([1], jnp.int32)
    sinks = jnp.array([8.0, -jnp.inf, 8.0, 8.0])  # the one score is 8
    out = paged_attention(q, pool, pool, *ints, scale=1.0, sinks=sinks)
    np.testing.assert_allclose(out[0, :, 0], [0.5, 1.0, 0.5, 0.5], rtol=1e-6)
    assert not out[1].any()


def test_an_unknown_back_end_is_an_error():
    with pytest.raises(Exception, match="backend"):
        attend_to_nothing(backend="imaginary")


def attend_to_nothing(head_dim: int = 8, backend: str = "auto") -> jax.Array:
    """One step of two padding tokens."""
    pool = jnp.zeros((3, 4, 2, head_dim), jnp.float32)
    q, ints = jnp.ones((2, 4, head_dim), jnp.float32), jnp.zeros(4, jnp.int32)
    args = (q, pool, pool, ints.reshape(2, 2), ints[:3], ints[:2])
    return paged_attention(*args, scale=1.0, backend=backend)


@pytest.fixture
def log(caplog):
    """What is logged, starting from a process that has said nothing yet."""
    attention._say_once.cache_clear()
    caplog.set_level(logging.INFO, logger="paged_jax")
    yield caplog
    attention._say_once.cache_clear()


@pytest.mark.parametrize(
    ("kind", "are_usable", "picked"),
    [("NVIDIA H200", False, "triton"), ("cpu", False, "xla"), ("cpu", True, "cpu")],
)
def test_auto_picks_what_runs_on_the_device_and_says_so_once(
    monkeypatch, log, kind, are_usable, picked
):
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(device_kind=kind)])
    monkeypatch.setattr(attention.kernels, "are_usable", lambda: are_usable)
    for _ in range(2):
        jaxpr = str(jax.make_jaxpr(lambda: attend_to_nothing())())  # traced anew
        called = {"triton": "pallas_call", "cpu": "paged_jax_paged_attention"}
        assert [name for name, call in called.items() if call in jaxpr] == [picked][
            : picked != "xla"
        ]
    said = f"attention runs on the back end {picked}, as the device is {kind}"
    assert [r.message for r in log.records] == [said]


@pytest.mark.parametrize(
    ("backend", "limit"),
    [("triton", "head_dim 512 is above 256"), ("mosaic", "head_dim 512 is none of (64, 128)")],
)
def test_a_shape_the_kernel_does_not_take_runs_on_xla_and_says_so_once(log, backend, limit):
    for _ in range(2):
        assert not attend_to_nothing(head_dim=512, backend=backend).any()
    (record,) = log.records
    assert f"{limit}; such steps run on the attention back end xla" in record.message
