"""Attention in numpy float64: what every implementation is checked against."""

from collections.abc import Callable

import numpy as np

from pallas_kernels.arg_specs import AttentionInputs, AttentionSpec

Bend = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]


def attention(
    inputs: AttentionInputs,
    spec: AttentionSpec,
    sinks: np.ndarray | None = None,
    *,
    bend: Bend | None = None,
) -> np.ndarray:
    """Return [tokens q_heads head_dim], one sequence at a time; pools hold values, not bits.

    Args:
        bend: from scores [q_heads queries context], what each query sees [queries context] and the
            first query's position to other scores and [q_heads queries context].
    """
    out = np.zeros(inputs.q.shape)
    for seq, kv_len in enumerate(spec.kv_lens):
        rows = slice(*inputs.query_starts[seq : seq + 2])
        context = np.arange(kv_len)
        slots = inputs.block_tables[seq, context // spec.block_size], context % spec.block_size
        k, v = (
            np.repeat(pool[slots].astype(np.float64), spec.q_heads // spec.kv_heads, axis=1)
            for pool in (inputs.k_pool, inputs.v_pool)
        )
        scores = np.einsum("qhd,chd->hqc", inputs.q[rows], k) * spec.scale
        if spec.softcap:
            scores = np.tanh(scores / spec.softcap) * spec.softcap
        behind = context[kv_len - (rows.stop - rows.start) :, None] - context
        seen = (behind >= 0) & (behind < (spec.window or kv_len))
        if bend is not None:
            scores, seen = bend(scores, seen, kv_len - (rows.stop - rows.start))
        weights = np.where(seen, np.exp(scores), 0.0)
        total = np.maximum(weights.sum(-1, keepdims=True), np.finfo(np.float64).tiny)
        if sinks is not None:
            total = total + np.exp(sinks)[:, None, None]
        out[rows] = np.einsum("hqc,chd->qhd", weights / total, v)
    return out
