"""Attention over the KV pool: the one place that knows which implementations there are."""

import importlib
import logging
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Literal

from jaxtyping import Array, Float, Int

from paged_jax.device import platform
from paged_jax.device.cpu import attention as cpu
from paged_jax.device.cpu import kernels
from paged_jax.device.derivative import with_derivative
from paged_jax.device.kv_pool import LayerPool, Scales
from pallas_kernels import dense, reference
from pallas_kernels.pool_view import Mods

AttentionBackend = Literal["auto", "xla", "triton", "mosaic", "cpu"]
Options = Mapping[str, Array | None]

logger = logging.getLogger("paged_jax")


def paged_attention(  # noqa: PLR0913
    q: Float[Array, "tokens q_heads head_dim"],
    k_pool: LayerPool,
    v_pool: LayerPool,
    block_tables: Int[Array, "seqs max_blocks"],
    query_starts: Int[Array, " seqs+1"],
    kv_lens: Int[Array, " seqs"],
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Float[Array, " q_heads"] | None = None,
    k_scales: Scales | None = None,
    v_scales: Scales | None = None,
    mods: Mods | None = None,
    backend: AttentionBackend = "auto",
) -> Float[Array, "tokens q_heads head_dim"]:
    """Attend from the packed queries of a step to their sequences' contexts, after `write_kv`.

    Args:
        window: a query sees this many tokens back, itself included; None sees all.
        softcap: scores become tanh(score / softcap) * softcap.
        sinks: a score a query head that adds to the sum its weights are divided by, and no value.
        k_scales: what each key of a one-byte pool is to be multiplied by; v_scales likewise.
        mods: a user's functions; with them attention runs on "xla".
        backend: "triton" runs on NVIDIA GPUs, "mosaic" on those of the Hopper generation, and
            "cpu" on CPUs with a C++ compiler; shapes that they do not take run on "xla". "auto"
            picks "triton" where there is an NVIDIA GPU, "cpu" where its kernels can be used, and
            never "mosaic", which no GPU has run yet.
    Returns:
        zeros for padding tokens. Its derivative is that of `dense.paged_attention_dense`.
    """
    arrays = (q, k_pool, v_pool, block_tables, query_starts, kv_lens)
    rule: dict[str, Any] = {"scale": scale, "window": window, "softcap": softcap}
    if mods is not None:
        _say_once(logging.INFO, "attention runs on the back end xla, as it has functions of yours")
        rule, backend = rule | {"mods": mods}, "xla"
    picked = partial(_attend, _pick() if backend == "auto" else backend, rule)
    definition = lambda arrays, more: dense.paged_attention_dense(*arrays, **rule, **more)  # noqa: E731
    more = {"sinks": sinks, "k_scales": k_scales, "v_scales": v_scales}
    return with_derivative(picked, definition)(arrays, more)


def _attend(
    backend: AttentionBackend, rule: Mapping[str, Any], arrays: tuple[Array, ...], more: Options
) -> Array:
    """Attend by a back end, or where it does not take such shapes by the reference."""
    options = {**rule, **more}
    if backend != "xla":
        try:
            return _implementation(backend)(*arrays, **options)
        except NotImplementedError as limit:
            _say_once(logging.WARNING, f"{limit}; such steps run on the attention back end xla")
    return reference.paged_attention(*arrays, **options)


def _implementation(backend: AttentionBackend) -> Callable[..., Array]:
    if backend == "cpu":
        return cpu.paged_attention
    # Here, since nobody else needs Pallas, which is slow to load.
    return importlib.import_module(f"pallas_kernels.{backend}").paged_attention


def write_kv(
    k_pool: LayerPool,
    v_pool: LayerPool,
    k: reference.New,
    v: reference.New,
    slots: Int[Array, " tokens"],
) -> tuple[LayerPool, LayerPool]:
    """Write each token's key and value to its slot; in place where the pools are donated."""
    try:
        return with_derivative(cpu.write_kv, reference.write_kv)(k_pool, v_pool, k, v, slots)
    except NotImplementedError:
        return reference.write_kv(k_pool, v_pool, k, v, slots)


def _pick() -> AttentionBackend:
    """The back end for the device that is traced for."""
    kind = platform.device_kind()
    picked = "triton" if platform.is_nvidia() else "cpu" if kernels.are_usable() else "xla"
    _say_once(logging.INFO, f"attention runs on the back end {picked}, as the device is {kind}")
    return picked


@cache
def _say_once(level: int, message: str) -> None:
    logger.log(level, message)
