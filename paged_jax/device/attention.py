"""Attention over the KV pool: the one place that knows which implementations there are."""

from typing import Literal

from jaxtyping import Array, Float, Int

from paged_jax.device.kv_pool import LayerPool
from pallas_kernels import reference

AttentionBackend = Literal["xla"]

_BACKENDS = {"xla": reference}


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
    backend: AttentionBackend = "xla",
) -> Float[Array, "tokens q_heads head_dim"]:
    """Attend from the packed queries of a step to their sequences' contexts, after `write_kv`.

    Args:
        window: a query sees this many tokens back, itself included; None sees all.
        softcap: scores become tanh(score / softcap) * softcap.
    Returns:
        zeros for padding tokens.
    """
    attend = _BACKENDS[backend].paged_attention
    rule = {"scale": scale, "window": window, "softcap": softcap}
    return attend(q, k_pool, v_pool, block_tables, query_starts, kv_lens, **rule)


def write_kv(
    k_pool: LayerPool,
    v_pool: LayerPool,
    k: Float[Array, "tokens kv_heads head_dim"],
    v: Float[Array, "tokens kv_heads head_dim"],
    slots: Int[Array, " tokens"],
    *,
    backend: AttentionBackend = "xla",
) -> tuple[LayerPool, LayerPool]:
    """Write each token's key and value to its slot; in place where the pools are donated."""
    return _BACKENDS[backend].write_kv(k_pool, v_pool, k, v, slots)
