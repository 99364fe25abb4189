"""Log-probabilities of drawn and given tokens, and the likeliest alternatives."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from paged_jax.device.cpu import kernels
from paged_jax.device.cpu import top_k as cpu_top_k
from paged_jax.pytree import pytree


@pytree
class SampleOutput:
    """Drawn tokens and, where a row asked for them, log-probabilities from the raw logits.

    Attributes:
        rank: 1 + the number of tokens strictly likelier than the drawn one.
        top_ids: the likeliest, in order.
    """

    tokens: Int[Array, " rows"]
    logprob: Float[Array, " rows"]
    rank: Int[Array, " rows"]
    top_ids: Int[Array, "rows max_logprobs"]
    top_logprobs: Float[Array, "rows max_logprobs"]


def position_logprobs(
    logits: Float[Array, "rows vocab"],
    targets: Int[Array, " rows"],
    max_logprobs: int,
    *,
    is_normalised: bool = True,
    vocab_limit: int | None = None,
) -> SampleOutput:
    """Return the log-probability and rank of each row's target, and the likeliest alternatives.

    Args:
        is_normalised: if not, logits are given as they are.
        vocab_limit: ids from here on are no alternatives.
    """
    norm = jax.nn.logsumexp(logits, axis=-1) if is_normalised else jnp.zeros(logits.shape[0])
    chosen = _of_targets(logits, targets)
    known = limited(logits, vocab_limit)
    rank = 1 + jnp.sum(known > chosen, axis=-1, dtype=jnp.int32)
    top, top_ids = top_k(known, max_logprobs)
    return SampleOutput(
        tokens=targets,
        logprob=chosen[:, 0] - norm,
        rank=rank,
        top_ids=top_ids,
        top_logprobs=top - norm[:, None],
    )


def token_logprobs(
    logits: Float[Array, "rows vocab"], targets: Int[Array, " rows"]
) -> Float[Array, " rows"]:
    """Return the log-probability of each row's target alone."""
    return _of_targets(logits, targets)[:, 0] - jax.nn.logsumexp(logits, axis=-1)


def _of_targets(logits: Array, targets: Array) -> Array:
    return jnp.take_along_axis(logits, targets[:, None], axis=-1)


def no_logprobs(tokens: Int[Array, " rows"], max_logprobs: int) -> SampleOutput:
    """Return drawn tokens of rows that want nothing else."""
    num_rows = tokens.shape[0]
    return SampleOutput(
        tokens=tokens,
        logprob=jnp.zeros(num_rows, jnp.float32),
        rank=jnp.zeros(num_rows, jnp.int32),
        top_ids=jnp.zeros((num_rows, max_logprobs), jnp.int32),
        top_logprobs=jnp.zeros((num_rows, max_logprobs), jnp.float32),
    )


def top_k(logits: Float[Array, "rows vocab"], k: int) -> tuple[Array, Array]:
    """Return the k largest values of each row, falling, and their ids."""
    largest = cpu_top_k.top_k if kernels.are_usable() else lax.top_k
    values, ids = largest(logits, k)
    return values, ids


def limited(logits: Float[Array, "rows vocab"], vocab_limit: int | None) -> Array:
    """Return logits that are -inf from `vocab_limit` on."""
    if vocab_limit is None or vocab_limit >= logits.shape[1]:
        return logits
    return jnp.where(jnp.arange(logits.shape[1])[None, :] < vocab_limit, logits, -jnp.inf)
