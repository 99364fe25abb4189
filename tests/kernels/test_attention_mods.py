"""A user's own attention on the paged path equals numpy float64, dense and in tiles."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paged_jax.attention_functions import alibi, tree, window_with_sinks
from pallas_kernels import dense, reference
from pallas_kernels.arg_specs import ATTENTION_SPECS, AttentionInputs, make_inputs
from pallas_kernels.oracle import attention as expected
from pallas_kernels.pool_view import Mods

FAST = {"xla_backend_optimization_level": 0}  # compile sooner; the arithmetic is the same
# Sequences of 40, 165, 129, 16 and 300 tokens; the fourth is a whole prompt.
SPEC = next(spec for spec in ATTENTION_SPECS if spec.name == "mixed group 7")
DECODE = replace(ATTENTION_SPECS[0], q_heads=14, kv_heads=2)
TOLERANCE = 5e-6  # float32 sums of a few hundred terms of order 1, in another order
PARENTS = (-1, 0, 0, 1, 1, 2, 5, -1, 7)


def places(scores, first):
    heads, queries, context = scores.shape
    q_pos = first + np.arange(queries)[None, :, None]
    return q_pos, np.arange(context)[None, None, :], np.arange(heads)[:, None, None]


def with_slopes(scores, seen, first):
    q_pos, k_pos, head = places(scores, first)
    return scores - 2.0 ** (-8 * (head + 1) / 14) * (q_pos - k_pos), seen


def with_sinks(scores, seen, first):
    q_pos, k_pos, _ = places(scores, first)
    return scores, seen & ((q_pos - k_pos < 9) | (k_pos < 4))


def with_tree(scores, seen, first):
    """Walk up from each node."""
    seen = np.broadcast_to(seen, scores.shape).copy()
    for query in range(seen.shape[1]):
        node = first + query - 3
        if 0 <= node < len(PARENTS):
            above = {node}
            while PARENTS[node] >= 0:
                node = PARENTS[node]
                above.add(node)
            hidden = [3 + other for other in range(len(PARENTS)) if other not in above]
            seen[:, query, [at for at in hidden if at < seen.shape[2]]] = False
    return scores, seen


def with_prefix(scores, seen, first):
    q_pos, k_pos, _ = places(scores, first)
    return scores, seen | ((q_pos < 12) & (k_pos < 12))


def with_nothing_for_some(scores, seen, first):
    q_pos, _, head = places(scores, first)
    return scores, seen & ~((q_pos % 3 == 0) & (head % 2 == 0))


def hides_some(q_pos, k_pos, head):
    return ~((q_pos % 3 == 0) & (head % 2 == 0)) & (k_pos >= 0)


def prefers_no_zero(score, q_pos, k_pos, head):
    return jnp.where((q_pos % 3 == 0) & (head % 2 == 0), -jnp.inf, score)


CASES = {
    "slopes": (Mods(score_mod=alibi(14)), with_slopes),
    "a window and sinks": (Mods(mask_mod=window_with_sinks(9, 4)), with_sinks),
    "a tree": (Mods(mask_mod=tree(3, PARENTS)), with_tree),
    "a prefix that sees itself": (Mods(bidirectional=12), with_prefix),
    "nothing is seen": (Mods(mask_mod=hides_some), with_nothing_for_some),
    "nothing scores": (Mods(score_mod=prefers_no_zero), with_nothing_for_some),
}


def attend(function, spec, mods: Mods) -> tuple[AttentionInputs, np.ndarray]:
    inputs = make_inputs(spec, seed=1)
    jitted = jax.jit(partial(function, scale=spec.scale, mods=mods), compiler_options=FAST)
    return inputs, np.asarray(jitted(*inputs))


@pytest.mark.parametrize(("mods", "bend"), CASES.values(), ids=CASES)
def test_own_attention_in_tiles_equals_numpy(mods, bend) -> None:
    inputs, got = attend(reference.paged_attention, SPEC, mods)
    np.testing.assert_allclose(got, expected(inputs, SPEC, bend=bend), atol=TOLERANCE)


@pytest.mark.parametrize("name", ["slopes", "a prefix that sees itself", "nothing is seen"])
def test_the_definition_of_own_attention_equals_numpy(name) -> None:
    mods, bend = CASES[name]
    inputs, got = attend(dense.paged_attention_dense, SPEC, mods)
    np.testing.assert_allclose(got, expected(inputs, SPEC, bend=bend), atol=TOLERANCE)


def test_own_attention_of_single_queries_equals_numpy() -> None:
    inputs, got = attend(reference.paged_attention, DECODE, CASES["slopes"][0])
    np.testing.assert_allclose(got, expected(inputs, DECODE, bend=with_slopes), atol=TOLERANCE)


def test_a_tree_whose_parents_come_later_is_refused() -> None:
    with pytest.raises(ValueError, match="the parent of node 1 must be -1 to 0, not 1"):
        tree(0, [-1, 1])
