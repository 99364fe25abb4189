"""Scores equal the float64 oracle's, gradients its differences, and updates take effect."""

from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np
import pytest
from tiny import oracle_logits

from paged_jax import LLM, InvalidRequest, SamplingParams, log_probabilities, score
from paged_jax.models.packed import PackedMatrix, unpacked
from paged_jax.models.params import ModelParams

TEXTS = [[5, 9, 200, 17, 33, 8, 250, 12, 7, 7, 90], [3, 4, 5, 6, 120], [77, 31]]
WEIGHTS = [np.linspace(-1.0, 2.0, len(text) - 1) for text in TEXTS]


def oracle_scores(config, params: ModelParams, text: list[int]) -> np.ndarray:
    table = oracle_logits(config, params, text)[:-1]
    norm = np.log(np.exp(table - table.max(-1, keepdims=True)).sum(-1)) + table.max(-1)
    return table[np.arange(len(text) - 1), text[1:]] - norm


def oracle_total(config, params: ModelParams) -> float:
    pairs = zip(WEIGHTS, TEXTS, strict=True)
    return sum(float(weights @ oracle_scores(config, params, text)) for weights, text in pairs)


def test_scores_equal_the_oracle(llm: LLM, plain_params: ModelParams) -> None:
    found = score(llm, TEXTS)
    for text, logprobs in zip(TEXTS, found.logprobs, strict=True):
        expected = oracle_scores(llm.engine.config.model, plain_params, text)
        np.testing.assert_allclose(logprobs, expected, atol=1e-4)
    assert found.gradients is None


@pytest.fixture(scope="module")
def gradients(llm: LLM, plain_params: ModelParams) -> ModelParams:
    """The derivative of the weighted scores by plain parameters, kept as [in, out]."""
    config = replace(llm.engine.config.model, is_packed=False)

    def total(params: ModelParams) -> jax.Array:
        found = log_probabilities(params, TEXTS, config)
        return sum(w.astype(np.float32) @ each for w, each in zip(WEIGHTS, found, strict=True))

    return jax.grad(total)(plain_params)


def test_gradients_equal_differences_in_float64(llm, plain_params, gradients, rng) -> None:
    config = llm.engine.config.model
    leaves, tree = jax.tree.flatten(jax.tree.map(lambda x: np.asarray(x, np.float64), plain_params))
    for index, gradient in enumerate(jax.tree.leaves(gradients)):
        direction = rng.normal(size=leaves[index].shape)
        sides = []
        for step in (1e-5, -1e-5):
            moved = list(leaves)
            moved[index] = leaves[index] + step * direction
            sides.append(oracle_total(config, jax.tree.unflatten(tree, moved)))
        difference = (sides[0] - sides[1]) / 2e-5
        slope = float(np.vdot(np.asarray(gradient, np.float64), direction))
        assert slope == pytest.approx(difference, rel=2e-3, abs=2e-3)


@pytest.mark.cpu_kernels
def test_gradients_of_packed_matrices_are_the_plain_ones_packed(llm: LLM, gradients) -> None:
    packed = score(llm, TEXTS, weights=WEIGHTS).gradients
    is_packed = lambda leaf: isinstance(leaf, PackedMatrix)  # noqa: E731
    leaves = jax.tree.leaves(packed, is_leaf=is_packed)
    assert sum(map(is_packed, leaves)) == 15, "trigger: the matrices are not packed"
    for found, expected in zip(leaves, jax.tree.leaves(gradients), strict=True):
        found = unpacked(found) if is_packed(found) else found
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_a_step_uphill_raises_the_scores(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    weights = [np.ones(len(text) - 1) for text in TEXTS]
    before = score(llm, TEXTS, weights=weights)
    climbed = jax.tree.map(lambda p, g: p + 1e-3 * g, llm.engine.params, before.gradients)

    assert llm.update_params(climbed) == 1

    after = score(llm, TEXTS)
    assert sum(map(np.sum, after.logprobs)) > sum(map(np.sum, before.logprobs)) + 0.1


def test_prompt_logprobs_of_the_engine_are_these_scores(llm: LLM) -> None:
    params = SamplingParams(prompt_logprobs=0, max_tokens=1)
    (output,) = llm.generate([TEXTS[0]], params, use_tqdm=False)
    tables = (output.prompt_logprobs or [])[1:]
    told = [table[token].logprob for token, table in zip(TEXTS[0][1:], tables, strict=True)]
    np.testing.assert_allclose(score(llm, TEXTS).logprobs[0], told, atol=1e-5)


@pytest.mark.parametrize(
    ("texts", "weights", "message"),
    [
        ([[5]], None, "text 0 has 1 tokens: give at least 2"),
        ([[5, 6], [5, 320]], None, "text 1 has the id 320, but ids are below 320"),
        ([[5] * 4000], None, "text 0 has 4000 tokens, but at most 2048 can be scored"),
        ([[5, 6, 7]], [[1.0]], r"weights have the shapes \[\(1,\)\], but must have \[\(2,\)\]"),
    ],
)
def test_what_cannot_be_scored_is_named(llm: LLM, texts, weights, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        score(llm, texts, weights=weights)
