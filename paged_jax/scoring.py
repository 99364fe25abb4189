"""Scores of given texts: the log-probability of each token after those before it, and derivatives.

Everything goes through the `forward` that serves, kernels included; what a kernel computes is
differentiated as the formula that defines it. With `--batch-invariant` the values are those the
sampler told, to the bit.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paged_jax.config import CacheConfig, EngineConfig, ModelConfig, OptionError
from paged_jax.device.kv_pool import KVPool, pool_dtype, pool_struct
from paged_jax.device.logprobs import token_logprobs
from paged_jax.device.sampling import ROW_TILE
from paged_jax.device.step_batch import BatchShape, StepBatch, one_query_each, pack
from paged_jax.engine.admission import depends_on_length
from paged_jax.engine.engine import Engine
from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.request import Chunk, Request, Sequence
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.llm import LLM
from paged_jax.models.params import ModelParams
from paged_jax.models.transformer import forward, logits

BLOCK_SIZE = 16
Texts = Seq[Seq[int]]


@dataclass(frozen=True)
class Scores:
    """What `score` returns.

    Attributes:
        logprobs: for each text, of its tokens from the second on: float32 [tokens - 1].
        gradients: of the weighted sum of all of these, in the form of the engine's parameters.
    """

    logprobs: list[np.ndarray]
    gradients: ModelParams | None = None


def score(model: LLM | Engine, texts: Texts, *, weights: Seq[Any] | None = None) -> Scores:
    """Score texts, given as token ids, with an engine's parameters; it may be serving meanwhile.

    Values are computed with keys and values as the engine's pool keeps them, derivatives with
    float32 ones. All texts are one step: its memory is that of so many tokens.

    Args:
        weights: for each text, of its tokens from the second on, what their log-probabilities are
            multiplied by in the sum that is differentiated; None differentiates nothing.
    Raises:
        InvalidRequest: a text cannot be scored, or weights do not fit.
        OptionError: the engine has several devices.
    """
    engine = model.engine if isinstance(model, LLM) else model
    config = engine.config
    if not isinstance(engine, Engine) or config.mesh.num_devices > 1:
        raise OptionError(
            f"score runs on one device, not on {config.mesh.num_devices}: leave out the "
            "--...-parallel-size options"
        )
    kv_dtype = pool_dtype(config.model, config.cache)
    values = partial(_values, texts=texts, config=config)
    logprobs = [np.asarray(each) for each in values(engine.params, kv_dtype=kv_dtype)]
    if weights is None:
        return Scores(logprobs)
    factors = _fitting(weights, texts)

    def total(params: ModelParams) -> jax.Array:
        found = values(params, kv_dtype="float32")
        return sum((jnp.vdot(*pair) for pair in zip(factors, found, strict=True)), jnp.float32(0))

    return Scores(logprobs, jax.grad(total)(engine.params))


def _values(
    params: ModelParams, *, texts: Texts, config: EngineConfig, kv_dtype: str
) -> list[jax.Array]:
    return log_probabilities(
        params,
        texts,
        config.model,
        kv_dtype=kv_dtype,
        is_batch_invariant=config.batch_invariant,
    )


def log_probabilities(
    params: ModelParams,
    texts: Texts,
    config: ModelConfig,
    *,
    kv_dtype: str = "float32",
    is_batch_invariant: bool = False,
) -> list[jax.Array]:
    """Return what `score` tells as a function of the parameters, for `jax.grad` and losses.

    Args:
        params: plain or packed.
        kv_dtype: of keys and values; only those kept as floats have a derivative.
        is_batch_invariant: as the option of that name; without it a value may differ in its last
            bits from what the sampler tells.
    """
    for index, text in enumerate(texts):
        _check(text, index, config)
    batch, targets = _packed([list(text) for text in texts])
    flat = _scored(
        params, batch, targets, config=config, kv_dtype=kv_dtype, is_single=is_batch_invariant
    )
    ends = np.cumsum([len(text) for text in texts])
    return [flat[end - len(text) : end - 1] for text, end in zip(texts, ends, strict=True)]


def _check(text: Seq[int], index: int, config: ModelConfig) -> None:
    """Raise InvalidRequest unless the text can be scored."""
    if len(text) < 2:
        raise InvalidRequest(f"text {index} has {len(text)} tokens: give at least 2", "texts")
    wrong = [token for token in text if not 0 <= token < config.vocab_size]
    if wrong:
        raise InvalidRequest(
            f"text {index} has the id {wrong[0]}, but ids are below {config.vocab_size}", "texts"
        )
    if len(text) > config.context_limit or depends_on_length(len(text), config):
        raise InvalidRequest(
            f"text {index} has {len(text)} tokens, but at most {config.max_position} can be scored",
            "texts",
        )


def _fitting(weights: Seq[Any], texts: Texts) -> list[jax.Array]:
    """Return the weights as arrays.

    Raises:
        InvalidRequest: a text has not one for each token but its first.
    """
    factors = [jnp.asarray(np.asarray(each, np.float32)) for each in weights]
    have, want = [each.shape for each in factors], [(len(text) - 1,) for text in texts]
    if have != want:
        raise InvalidRequest(f"weights have the shapes {have}, but must have {want}", "weights")
    return factors


def _packed(texts: list[list[int]]) -> tuple[StepBatch, np.ndarray]:
    """One step of all texts, padded to powers of two, and for each token the one after it."""
    longest = _power_of_two(-(-max(map(len, texts)) // BLOCK_SIZE))
    num_tokens, num_texts = _power_of_two(sum(map(len, texts))), _power_of_two(len(texts))
    shape = BatchShape(max(num_tokens, ROW_TILE), num_texts, longest, 1)
    chunks = []
    for index, text in enumerate(texts):
        prompt, sampling = tuple(text), SamplingParams()
        request = Request(id=str(index), prompt=prompt, sampling=sampling, seed=0, max_tokens=1)
        first = 1 + index * longest
        blocks = list(range(first, first + -(-len(text) // BLOCK_SIZE)))
        chunks.append(Chunk(Sequence(request, block_table=blocks), 0, len(text), 0))
    targets = np.zeros(shape.tokens, np.int32)
    following = [token for text in texts for token in (*text[1:], 0)]
    targets[: len(following)] = following
    return pack(chunks, shape, BLOCK_SIZE), targets


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


@partial(jax.jit, static_argnames=("config", "kv_dtype", "is_single"))
def _scored(
    params: ModelParams,
    batch: StepBatch,
    targets: jax.Array,
    *,
    config: ModelConfig,
    kv_dtype: str,
    is_single: bool,
) -> jax.Array:
    """Log-probability of each target: [tokens]. Logits exist for a few rows at a time."""
    num_blocks = 1 + batch.block_tables.shape[0] * batch.block_tables.shape[1]
    cache = CacheConfig(num_blocks, BLOCK_SIZE, dtype=kv_dtype)
    empty = lambda leaf: jnp.zeros(leaf.shape, leaf.dtype)  # noqa: E731
    pool: KVPool = jax.tree.map(empty, pool_struct(config, cache))
    hidden, _ = forward(params, pool, one_query_each(batch) if is_single else batch, config)

    @jax.checkpoint
    def of_tile(tile: tuple[jax.Array, jax.Array]) -> jax.Array:
        return token_logprobs(logits(params, tile[0]), tile[1])

    tiles = hidden.reshape(-1, ROW_TILE, hidden.shape[1]), targets.reshape(-1, ROW_TILE)
    return jax.lax.map(of_tile, tiles).reshape(-1)
