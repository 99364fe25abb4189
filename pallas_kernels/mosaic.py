"""Paged attention in Pallas Mosaic GPU, for NVIDIA's Hopper GPUs: the back end "mosaic"."""

from jaxtyping import Array, Float, Int

from pallas_kernels.mosaic_context import check_supported
from pallas_kernels.mosaic_decode import paged_decode
from pallas_kernels.mosaic_prefill import paged_prefill
from pallas_kernels.reference import write_kv as write_kv
from pallas_kernels.tiles import Pool, Scales, Sinks
from pallas_kernels.triton import num_sms


def paged_attention(
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
    interpret: bool = False,
) -> Float[Array, "tokens q_heads head_dim"]:
    """Attend as `reference.paged_attention` does, by the kernel that fits the step's shape.

    Args:
        k_scales: not taken, for pools of one-byte values are not; v_scales likewise.
        interpret: run on a CPU, and raise an error where two threads race; from JAX 0.11 on.
    Raises:
        NotImplementedError: naming the limit, for shapes the kernels do not take.
    """
    check_supported(q, k_pool, (k_scales, v_scales))
    arrays = (q, k_pool, v_pool, block_tables, query_starts, kv_lens)
    rule = {"scale": scale, "window": window, "softcap": softcap, "interpret": interpret}
    if q.shape[0] <= kv_lens.shape[0]:
        return paged_decode(*arrays, **rule, sinks=sinks, num_sms=num_sms())
    if sinks is not None:
        raise NotImplementedError("Mosaic GPU paged attention: sinks with several queries")
    return paged_prefill(*arrays, **rule)
