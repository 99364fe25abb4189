"""Steps of prompts and single tokens in Triton: the single ones by the decode kernel, in splits.

In the prefill kernel one program reads the whole context of a single token, and a long one is the
last to end. Here each sequence has one row of the decode kernel, without context if it has more
than one query, and the prefill kernel takes no tile of the others.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.decode import paged_decode
from pallas_kernels.prefill import paged_prefill
from pallas_kernels.tiles import H200_SMS, Pool, Scales, Sinks


def paged_mixed(
    q: Float[Array, "tokens q_heads head_dim"],
    k_pool: Pool,
    v_pool: Pool,
    block_tables: Int[Array, "seqs max_blocks"],
    query_starts: Int[Array, " seqs+1"],
    kv_lens: Int[Array, " seqs"],
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Sinks | None = None,
    k_scales: Scales | None = None,
    v_scales: Scales | None = None,
    num_sms: int = H200_SMS,
    interpret: bool = False,
) -> Float[Array, "tokens q_heads head_dim"]:
    """Attend as `reference.paged_attention` does; for what the arguments are, see `paged_decode`.

    Raises:
        NotImplementedError: naming the limit.
    """
    rule = {"scale": scale, "window": window, "softcap": softcap, "sinks": sinks}
    options = {**rule, "k_scales": k_scales, "v_scales": v_scales, "interpret": interpret}
    pools = (k_pool, v_pool, block_tables)
    is_single = query_starts[1:] - query_starts[:-1] == 1
    rows = jnp.where(is_single, query_starts[:-1], 0)
    starts = jnp.arange(kv_lens.shape[0] + 1, dtype=query_starts.dtype)
    lens = jnp.where(is_single, kv_lens, 0)
    single = paged_decode(q[rows], *pools, starts, lens, num_sms=num_sms, **options)
    out = paged_prefill(q, *pools, query_starts, kv_lens, is_taken=~is_single, **options)
    return out.at[jnp.where(is_single, rows, q.shape[0])].set(single, mode="drop")
