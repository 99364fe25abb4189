"""The whole model in float64 NumPy, without a cache: what every faster path is compared with."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from paged_jax.config import ModelConfig, RopeScaling
from paged_jax.host.taps import AddVector, Edit, SetVector, ZeroHead
from paged_jax.models.params import LayerParams, ModelParams

Bend = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def oracle_logits(
    config: ModelConfig,
    params: ModelParams,
    ids: list[int],
    *,
    prompt_len: int | None = None,
    edits: Sequence[Edit] = (),
    bend: Bend | None = None,
) -> np.ndarray:
    """Return [tokens vocab]; the first `prompt_len` ids (default: all) are the prompt."""
    head = wide(params.embed).T if params.unembed is None else wide(params.unembed)
    hidden = oracle_hidden(config, params, ids, prompt_len=prompt_len, edits=edits, bend=bend)
    return hidden @ head


def oracle_hidden(
    config: ModelConfig,
    params: ModelParams,
    ids: list[int],
    *,
    prompt_len: int | None = None,
    edits: Sequence[Edit] = (),
    bend: Bend | None = None,
) -> np.ndarray:
    """Return [tokens embed], after the final norm."""
    streams, _ = oracle_layers(config, params, ids, prompt_len=prompt_len, edits=edits, bend=bend)
    return norm(streams[-1], params.final_norm, config)


def oracle_layers(
    config: ModelConfig,
    params: ModelParams,
    ids: list[int],
    *,
    prompt_len: int | None = None,
    edits: Sequence[Edit] = (),
    bend: Bend | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the stream before each layer and behind the last, [layers+1 tokens embed], and the
    attention weights, [layers heads tokens tokens].

    Args:
        edits: with positions counted from 0.
        bend: from scores [heads tokens tokens] and what each token sees [tokens tokens] to others.
    """
    lengths = np.maximum(prompt_len or len(ids), np.arange(len(ids)) + 1)
    angles = np.arange(len(ids))[:, None] * np.stack([frequencies(config, n) for n in lengths])
    x, streams, weights = wide(params.embed)[ids], [], []
    for index, layer in enumerate(params.layers):
        x = edited(x, edits, index)
        h, streams = norm(x, layer.attn_norm, config), [*streams, x]
        out, shares = attention(h, layer, angles, config, index, bend)
        out, weights = without_heads(out, edits, index), [*weights, shares]
        x = x + linear(out.reshape(len(h), -1), layer.w_o, layer.b_o)
        h = norm(x, layer.mlp_norm, config)
        gate = linear(h, layer.w_gate, layer.b_gate)
        hidden = gate / (1 + np.exp(-gate)) * linear(h, layer.w_up, layer.b_up)
        x = x + linear(hidden, layer.w_down, layer.b_down)
    return np.stack([*streams, edited(x, edits, config.num_layers)]), np.stack(weights)


def edited(x: np.ndarray, edits: Sequence[Edit], layer: int) -> np.ndarray:
    x = x.copy()
    for edit in edits:
        if isinstance(edit, AddVector) and edit.layer == layer:
            x[edit.start : edit.stop] += wide(edit.vector)
        if isinstance(edit, SetVector) and edit.layer == layer:
            x[edit.position : edit.position + 1] = wide(edit.vector)
    return x


def without_heads(out: np.ndarray, edits: Sequence[Edit], layer: int) -> np.ndarray:
    for edit in edits:
        if isinstance(edit, ZeroHead) and edit.layer == layer:
            out[edit.start : edit.stop, edit.head] = 0
    return out


def greedy(
    config: ModelConfig,
    params: ModelParams,
    prompt: list[int],
    count: int,
    *,
    edits: Sequence[Edit] = (),
    bend: Bend | None = None,
) -> list[int]:
    """Return the `count` likeliest tokens after the prompt, one after the other."""
    ids = list(prompt)
    for _ in range(count):
        row = oracle_logits(config, params, ids, prompt_len=len(prompt), edits=edits, bend=bend)[-1]
        ids.append(int(row[: config.vocab_limit].argmax()))
    return ids[len(prompt) :]


def attention(
    h: np.ndarray,
    layer: LayerParams,
    angles: np.ndarray,
    config: ModelConfig,
    index: int,
    bend: Bend | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return what each head gives, [tokens heads head_dim], and its weights."""
    split = lambda x: x.reshape(len(h), -1, config.head_dim)  # noqa: E731
    q, k, v = (
        split(linear(h, *pair))
        for pair in ((layer.w_q, layer.b_q), (layer.w_k, layer.b_k), (layer.w_v, layer.b_v))
    )
    if config.qk_norm:
        q, k = norm(q, layer.q_norm, config), norm(k, layer.k_norm, config)
    q, k = turn(q, angles, config), turn(k, angles, config)
    group = config.num_q_heads // config.num_kv_heads
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    back = np.arange(len(h))[:, None] - np.arange(len(h))[None, :]
    seen = (back >= 0) & (back < (config.window(index) or len(h) + 1))
    scores = np.einsum("thd,chd->htc", q, k) / math.sqrt(config.head_dim)
    scores, seen = (scores, seen) if bend is None else bend(scores, seen)
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("htc,chd->thd", weights, v), weights


def frequencies(config: ModelConfig, length: int) -> np.ndarray:
    """Return the inverse frequencies for a sequence of `length` tokens."""
    scaling, dim, base = config.rope_scaling, config.head_dim, config.rope_theta
    original, factor = scaling.original_max_position or config.max_position, scaling.factor
    if scaling.kind == "dynamic":
        stretched = factor * max(length, original) / original - (factor - 1)
        base *= stretched ** (dim / (dim - 2))
    plain = 1 / base ** (np.arange(0, dim, 2) / dim)
    slow_share = {
        "default": lambda: 0.0,
        "dynamic": lambda: 0.0,
        "linear": lambda: 1.0,
        "yarn": lambda: yarn_share(config, original),
        "llama3": lambda: llama3_share(scaling, original / (2 * math.pi / plain)),
    }[scaling.kind]()
    return (plain / factor * slow_share + plain * (1 - slow_share)) / (scaling.divisors or 1.0)


def llama3_share(scaling: RopeScaling, turns: np.ndarray) -> np.ndarray:
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return 1 - np.clip((turns - low) / (high - low), 0, 1)


def yarn_share(config: ModelConfig, original: int) -> np.ndarray:
    dim, scaling = config.head_dim, config.rope_scaling
    edge = lambda turns: (  # noqa: E731
        dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))
    )
    low, high = edge(scaling.beta_fast), edge(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)


def turn(x: np.ndarray, angles: np.ndarray, config: ModelConfig) -> np.ndarray:
    scaling = config.rope_scaling
    gain = 1.0
    if scaling.kind == "yarn":
        gain = scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1
    cos, sin = np.cos(angles)[:, None] * gain, np.sin(angles)[:, None] * gain
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def norm(x: np.ndarray, weight: object, config: ModelConfig) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm_eps) * wide(weight)


def linear(x: np.ndarray, weight: object, bias: object) -> np.ndarray:
    return x @ wide(weight) + (0 if bias is None else wide(bias))


def wide(leaf: object) -> np.ndarray:
    return np.asarray(leaf).astype(np.float64)
