"""Attention in numpy float64: what every implementation is checked against."""

import numpy as np

from pallas_kernels.arg_specs import AttentionInputs, AttentionSpec


def attention(
    inputs: AttentionInputs, spec: AttentionSpec, sinks: np.ndarray | None = None
) -> np.ndarray:
    """Return [tokens q_heads head_dim], one sequence at a time; pools hold values, not bits."""
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
        weights = np.where(seen, np.exp(scores), 0.0)
        total = weights.sum(-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sinks)[:, None, None]
        out[rows] = np.einsum("hqc,chd->qhd", weights / total, v)
    return out
