"""Paged attention in Pallas Triton, for NVIDIA GPUs from Ampere on: the back end "triton"."""

import jax
from jaxtyping import Array, Float, Int

from pallas_kernels.decode import paged_decode
from pallas_kernels.mixed import paged_mixed
from pallas_kernels.prefill import paged_prefill
from pallas_kernels.reference import write_kv as write_kv
from pallas_kernels.tiles import H200_SMS, Pool, Scales, Sinks

LONG_CONTEXT = 4096  # tokens that tables can hold, above which single tokens are worth two kernels


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
        k_scales: what each key of an int8 or float8 pool is to be multiplied by; v_scales likewise.
        interpret: run on a CPU.
    Raises:
        NotImplementedError: naming the limit, for shapes the kernels do not take.
    """
    arrays = (q, k_pool, v_pool, block_tables, query_starts, kv_lens)
    rule = {"scale": scale, "window": window, "softcap": softcap, "sinks": sinks}
    options = {"k_scales": k_scales, "v_scales": v_scales, "interpret": interpret}
    if q.shape[0] <= kv_lens.shape[0]:
        return paged_decode(*arrays, **rule, **options, num_sms=num_sms())
    if block_tables.shape[1] * k_pool.shape[1] > LONG_CONTEXT:
        return paged_mixed(*arrays, **rule, **options, num_sms=num_sms())
    return paged_prefill(*arrays, **rule, **options)


def num_sms() -> int:
    """Return the streaming multiprocessors of the GPU, or of an H200 where there is none."""
    described = jax.sharding.get_abstract_mesh().abstract_device
    if described is not None:
        return described.num_cores or H200_SMS
    return getattr(jax.local_devices()[0], "core_count", None) or H200_SMS
