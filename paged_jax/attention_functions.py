"""Ready functions for `LLM(score_mod=..., mask_mod=...)`, and examples for one's own.

Each takes arrays of numbers that broadcast together and works on each number by itself. A model
was trained with its own attention: what another one makes of it is a question, not a promise.
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

ScoreMod = Callable[[Array, Array, Array, Array], Array]
MaskMod = Callable[[Array, Array, Array], Array]


def alibi(num_heads: int) -> ScoreMod:
    """Take off each score its distance times the head's slope, beside the model's rotation.

    Source: Press et al. 2022, arXiv:2108.12409, for numbers of heads that are powers of two.
    """

    def score_mod(score: Array, q_pos: Array, k_pos: Array, head: Array) -> Array:
        slope = jnp.exp2((head + 1).astype(jnp.float32) * jnp.float32(-8 / num_heads))
        return score - slope * (q_pos - k_pos).astype(jnp.float32)

    return score_mod


def window_with_sinks(window: int, num_sinks: int) -> MaskMod:
    """See the last `window` tokens, oneself included, and the first `num_sinks`.

    Source: Xiao et al. 2024, arXiv:2309.17453, without moving positions.
    """

    def mask_mod(q_pos: Array, k_pos: Array, head: Array) -> Array:
        return (q_pos - k_pos < window) | (k_pos < num_sinks)

    return mask_mod


def tree(start: int, parents: Sequence[int]) -> MaskMod:
    """Let the tokens from `start` on be the nodes of a tree behind a common trunk.

    A node sees the trunk, its ancestors and itself; what comes behind the tree sees all.

    Args:
        parents: of each node the number of its parent, which comes before it; -1 is the trunk.
    """
    is_above = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"the parent of node {node} must be -1 to {node - 1}, not {parent}")
        is_above[node] |= is_above[parent] if parent >= 0 else False
    last = len(parents) - 1

    def mask_mod(q_pos: Array, k_pos: Array, head: Array) -> Array:
        node, other = q_pos - start, k_pos - start
        related = jnp.asarray(is_above)[jnp.clip(node, 0, last), jnp.clip(other, 0, last)]
        return (node < 0) | (node > last) | (other < 0) | related

    return mask_mod
