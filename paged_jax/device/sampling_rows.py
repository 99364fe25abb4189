"""SamplingRows: what is asked of each token to be drawn, packed into padded arrays."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt32

from paged_jax.host.dry import dry_penalties
from paged_jax.host.request import Chunk, Sequence
from paged_jax.pytree import pytree

BIAS_LIMIT = 100.0
Masks = Mapping[int, np.ndarray]
NO_MASKS: Masks = {}
Draw = tuple[Sequence, int]  # a sequence, and the choice of it that draws
# The columns of `SamplingParams.settings`, and those of a row that asks for nothing.
_DTYPES: dict[str, type] = {
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
    "is_greedy": np.bool_,
    "repetition": np.float32,
    "presence": np.float32,
    "frequency": np.float32,
    "has_penalties": np.bool_,
    "num_logprobs": np.int32,
    "xtc_probability": np.float32,
    "xtc_threshold": np.float32,
}
_NEUTRAL = np.array([1, 0, 1, 0, True, 1, 0, 0, False, -1, 0, 1], np.float64)


@pytree
class SamplingRows:
    """One row for each token to be drawn. Padding rows are greedy and ask for nothing.

    Attributes:
        top_k: 0 is off.
        keys: the choice's seed as a raw threefry key, high word first.
        positions: the position the drawn token will have; only of padding rows it is 0.
        history: ids of prompt and output, for rows with penalties (or a function of the user's);
            elsewhere empty.
        prompt_lens: how many of the history are prompt.
        history_lens: how many are valid.
        bias_ids: ids whose logits change; padding is id 0 with value 0.
        bias_values: what is added; -inf forbids the id.
        is_masked: whether only ids in `allowed` may be drawn.
        allowed: bit b of word w is id 32 w + b; ids beyond the last word are forbidden.
        num_logprobs: alternatives wanted; -1 wants no log-probabilities at all.
        is_plain: every row just takes its likeliest id. Static: such steps have a program of their
            own, without a branch that the device would have to decide on.
    """

    temperature: Float[Array, " rows"]
    top_k: Int[Array, " rows"]
    top_p: Float[Array, " rows"]
    min_p: Float[Array, " rows"]
    is_greedy: Bool[Array, " rows"]
    keys: UInt32[Array, "rows 2"]
    positions: Int[Array, " rows"]
    repetition: Float[Array, " rows"]
    presence: Float[Array, " rows"]
    frequency: Float[Array, " rows"]
    has_penalties: Bool[Array, " rows"]
    history: Int[Array, "rows context"]
    prompt_lens: Int[Array, " rows"]
    history_lens: Int[Array, " rows"]
    bias_ids: Int[Array, "rows biases"]
    bias_values: Float[Array, "rows biases"]
    is_masked: Bool[Array, " rows"]
    allowed: UInt32[Array, "rows words"]
    num_logprobs: Int[Array, " rows"]
    xtc_probability: Float[Array, " rows"]
    xtc_threshold: Float[Array, " rows"]
    is_plain: bool = struct.field(pytree_node=False)


@dataclass(frozen=True)
class RowShape:
    """The padded sizes of SamplingRows.

    Attributes:
        context: longest prompt plus output, in tokens.
        biases: most ids one row may bias or forbid.
        words: 32-bit words of a mask over the vocabulary.
        has_histories: every row has its history, and none is plain.
    """

    rows: int
    context: int
    biases: int
    words: int = 1
    has_histories: bool = False


def draws(chunks: Seq[Chunk]) -> list[Draw]:
    """Return the (sequence, choice) of each draw of a step, in the order of `sample_at`."""
    return [
        (chunk.sequence, chunk.sequence.index + choice)
        for chunk in chunks
        for choice in range(chunk.num_samples)
    ]


def pack_rows(drawn: Seq[Draw], shape: RowShape, masks: Masks = NO_MASKS) -> SamplingRows:
    """Pack (sequence, choice) pairs into arrays of `shape`; choice i draws with seed + i.

    Args:
        masks: [words] uint32 for each row that has one. It knows of `min_tokens` itself.
    """
    assert len(drawn) <= shape.rows, f"{len(drawn)} draws do not fit {shape.rows} rows"
    table = np.tile(_NEUTRAL, (shape.rows, 1))
    if drawn:
        table[: len(drawn)] = [sequence.request.sampling.settings for sequence, _ in drawn]
    # Leaves are numpy; the fields' types say what jit makes of them.
    columns: dict[str, Any] = {
        name: table[:, index].astype(dtype) for index, (name, dtype) in enumerate(_DTYPES.items())
    }
    positions: Any = np.zeros(shape.rows, np.int32)
    positions[: len(drawn)] = [sequence.num_tokens + sequence.num_pending for sequence, _ in drawn]
    history, prompt_lens, history_lens = _pack_history(drawn, shape)
    biases = [_bias(sequence, row in masks) for row, (sequence, _) in enumerate(drawn)]
    bias_ids, bias_values = _pack_biases(biases, shape)
    is_masked, allowed = _pack_masks(masks, shape)
    return SamplingRows(
        **columns,
        keys=_pack_keys(drawn, shape),
        positions=positions,
        history=history,
        prompt_lens=prompt_lens,
        history_lens=history_lens,
        bias_ids=bias_ids,
        bias_values=bias_values,
        is_masked=is_masked,
        allowed=allowed,
        is_plain=not (any(biases) or masks or shape.has_histories) and _is_plain(**columns),
    )


def _is_plain(
    *, is_greedy: np.ndarray, has_penalties: np.ndarray, num_logprobs: np.ndarray, **_: np.ndarray
) -> bool:
    return bool(np.all(is_greedy & ~has_penalties & (num_logprobs < 0)))


def _pack_keys(drawn: Seq[Draw], shape: RowShape) -> Any:
    """Seeds modulo 2**64 as (high, low) words."""
    seeds = [(sequence.request.seed + choice) % (1 << 64) for sequence, choice in drawn]
    words = np.array(seeds, np.uint64)
    keys = np.zeros((shape.rows, 2), np.uint32)
    keys[: len(seeds), 0], keys[: len(seeds), 1] = words >> 32, words & 0xFFFFFFFF
    return keys


def _pack_history(drawn: Seq[Draw], shape: RowShape) -> tuple[Any, Any, Any]:
    """Ids, prompt lengths and lengths; the shared zeros when no row has penalties."""
    prompt_lens, history_lens = np.zeros((2, shape.rows), np.int32)
    penalised = [
        (row, sequence)
        for row, (sequence, _) in enumerate(drawn)
        if shape.has_histories or sequence.request.sampling.has_penalties
    ]
    if not penalised:
        return _zeros(shape.rows, shape.context, np.int32), prompt_lens, history_lens
    history = np.zeros((shape.rows, shape.context), np.int32)
    for row, sequence in penalised:
        assert not sequence.num_pending, "penalties need every token"
        history[row, : sequence.num_tokens] = sequence.tokens(0, sequence.num_tokens)
        prompt_lens[row], history_lens[row] = len(sequence.request.prompt), sequence.num_tokens
    return history, prompt_lens, history_lens


def _pack_biases(biases: Seq[dict[int, float]], shape: RowShape) -> tuple[Any, Any]:
    """Biased ids and values of each row; the shared zeros when there are none."""
    size = (shape.rows, shape.biases)
    if not any(biases):
        return _zeros(*size, np.int32), _zeros(*size, np.float32)
    ids, values = np.zeros(size, np.int32), np.zeros(size, np.float32)
    for row, bias in enumerate(biases):
        assert len(bias) <= shape.biases, f"{len(bias)} biases do not fit {shape.biases}"
        ids[row, : len(bias)] = list(bias)
        values[row, : len(bias)] = list(bias.values())
    return ids, values


def _pack_masks(masks: Masks, shape: RowShape) -> tuple[Any, Any]:
    """Which rows have a mask, and the masks; the shared zeros when there are none."""
    if not masks:
        return _zeros(shape.rows, 1, np.bool_)[:, 0], _zeros(shape.rows, shape.words, np.uint32)
    is_masked = np.zeros(shape.rows, np.bool_)
    allowed = np.zeros((shape.rows, shape.words), np.uint32)
    rows = list(masks)
    is_masked[rows], allowed[rows] = True, np.stack(list(masks.values()))
    return is_masked, allowed


def _bias(sequence: Sequence, is_masked: bool) -> dict[int, float]:
    """What is added to which logits: `logit_bias`, and -inf for ends that `min_tokens` forbids."""
    request, params = sequence.request, sequence.request.sampling
    num_output = len(sequence.output) + sequence.num_pending
    dry = _dry(sequence) if params.dry_multiplier else {}
    is_too_short = num_output < params.min_tokens and not is_masked
    if not params.logit_bias and not is_too_short and not dry:
        return {}
    bias = {
        token: max(-BIAS_LIMIT, min(BIAS_LIMIT, value))
        for token, value in (params.logit_bias or {}).items()
    }
    for token, penalty in dry.items():
        bias[token] = bias.get(token, 0.0) - penalty
    if is_too_short:
        bias |= dict.fromkeys((*request.eos_ids, *params.stop_ids), -np.inf)
    return bias


def _dry(sequence: Sequence) -> dict[int, float]:
    params = sequence.request.sampling
    return dry_penalties(
        sequence.tokens(0, sequence.num_tokens),
        multiplier=params.dry_multiplier,
        base=params.dry_base,
        allowed_len=params.dry_allowed_length,
        breakers=sequence.request.breaker_ids,
    )


@cache
def _zeros(rows: int, width: int, dtype: type) -> np.ndarray:
    """Read-only zeros, made once for each row bucket: most steps need nothing else."""
    zeros = np.zeros((rows, width), dtype)
    zeros.flags.writeable = False
    return zeros
