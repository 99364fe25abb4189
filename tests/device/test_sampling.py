"""Sampling against vLLM's order of operations (sampling_oracle.py)."""

import functools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling_oracle import (
    SHAPE,
    VOCAB,
    change_logits,
    distribution,
    draw,
    draw_tokens,
    jitted,
    make_mixed,
    make_sequence,
    softmax,
)

from paged_jax.device import platform
from paged_jax.device.logprobs import position_logprobs
from paged_jax.device.sampling import sample
from paged_jax.device.sampling_rows import RowShape, draws, pack_rows
from paged_jax.host.request import Chunk


def test_greedy_rows_take_the_argmax_after_bias_and_penalties(rng):
    for _ in range(20):
        logits = rng.normal(size=(SHAPE.rows, VOCAB)).astype(np.float32)
        sequences = make_mixed(rng, temperature=0)
        want = [int(change_logits(x, s).argmax()) for x, s in zip(logits, sequences, strict=True)]
        assert draw_tokens(logits, sequences) == want


@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_draws_follow_the_filtered_distribution(rng, spread):
    logits = (rng.normal(size=(SHAPE.rows, VOCAB)) * spread).astype(np.float32)
    sequences = make_mixed(rng)
    rows = pack_rows([(sequence, 0) for sequence in sequences], SHAPE)
    at = lambda i: rows.replace(positions=np.full(SHAPE.rows, i, np.int32))  # noqa: E731
    drawn = np.stack([jitted(logits, at(i)).tokens for i in range(3000)])
    for row, sequence in enumerate(sequences):
        want = distribution(logits[row], sequence)
        counts = np.bincount(drawn[:, row], minlength=VOCAB)
        assert not counts[want == 0].any(), sequence.request.sampling
        assert_counts_fit(counts, want * len(drawn))


def assert_counts_fit(counts: np.ndarray, expected: np.ndarray) -> None:
    """Chi-square, five standard deviations; rare ids are one bin."""
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    freedom = max(1, len(counts) - 1)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom) + 5


def test_a_row_does_not_depend_on_its_batch_mates(rng):
    logits = rng.normal(size=(SHAPE.rows, VOCAB)).astype(np.float32)
    sequences = make_mixed(rng, logprobs=4)
    sequences[3:5] = make_mixed(rng, temperature=0)[:2]
    together = draw(logits, sequences)
    order = rng.permutation(SHAPE.rows)
    shuffled = draw(logits[order], [sequences[i] for i in order])
    np.testing.assert_array_equal(shuffled.tokens, together.tokens[order])
    for row, sequence in enumerate(sequences):
        alone = draw(logits[row : row + 1], [sequence])
        assert alone.tokens[0] == together.tokens[row]
        if sequence.request.sampling.logprobs:
            assert alone.logprob[0] == together.logprob[row]


def test_the_number_of_rows_does_not_change_a_token(rng):
    logits = rng.normal(size=(SHAPE.rows, VOCAB)).astype(np.float32)
    sequences = make_mixed(rng)
    together = draw_tokens(logits, sequences)
    for row, sequence in enumerate(sequences):
        alone = draw(logits[row : row + 1], [sequence], replace(SHAPE, rows=1))
        assert alone.tokens[0] == together[row]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"presence_penalty": 0.1},
        {"logprobs": 0},
        {"logit_bias": {3: 1.0}},
        {"min_tokens": 2},
    ],
)
def test_a_step_is_plain_if_every_row_just_takes_its_likeliest_id(params):
    plain = make_sequence(temperature=0)
    other = make_sequence(**{"temperature": 0, **params})
    assert pack_rows([(plain, 0)] * 2, SHAPE).is_plain
    assert not pack_rows([(plain, 0), (other, 0)], SHAPE).is_plain


def test_a_plain_step_draws_what_the_program_for_every_mix_draws(rng):
    logits = rng.normal(size=(SHAPE.rows, VOCAB)).astype(np.float32)
    rows = pack_rows([(make_sequence(temperature=0), 0)] * SHAPE.rows, SHAPE)
    outs = [jitted(logits, rows.replace(is_plain=is_plain)) for is_plain in (True, False)]
    jax.tree.map(np.testing.assert_array_equal, *outs)


def test_for_a_gpu_there_is_no_loop_and_no_token_changes(rng, monkeypatch):
    logits = rng.normal(size=(SHAPE.rows, VOCAB)).astype(np.float32)
    sequences = make_mixed(rng)
    want = draw_tokens(logits, sequences)
    rows = pack_rows([(sequence, 0) for sequence in sequences], SHAPE)
    monkeypatch.setattr(platform, "target", lambda: "gpu")
    function = jax.jit(lambda *arguments: sample(*arguments, max_logprobs=4))
    assert "while[" not in str(function.trace(logits, rows).jaxpr)
    assert function(logits, rows).tokens[: len(sequences)].tolist() == want


def test_every_mix_runs_in_one_of_two_programs(rng):
    function = jax.jit(functools.partial(sample, max_logprobs=4))
    logits = rng.normal(size=(SHAPE.rows, VOCAB)).astype(np.float32)
    for sequences in ([], make_mixed(rng), make_mixed(rng, temperature=0, logprobs=2)):
        function(logits, pack_rows([(sequence, 0) for sequence in sequences], SHAPE))
    assert function._cache_size() == 2


def test_settings_that_leave_one_token_equal_greedy(rng):
    logits = (rng.normal(size=(8, VOCAB)) * 0.1).astype(np.float32)
    narrow = [
        {"temperature": 0},
        {"top_k": 1},
        {"top_p": 0.0},
        {"min_p": 1.0},
        {"temperature": 1e-5},
        {"temperature": 1e-4},
        {"temperature": 1e-30},
        {"top_p": 1e-9, "temperature": 2.0},
    ]
    sequences = [make_sequence(**params) for params in narrow]
    assert draw_tokens(logits, sequences) == logits.argmax(-1).tolist()


def test_the_sampler_alone_takes_zero_top_p_and_a_top_k_of_one(rng):
    logits = rng.normal(size=(SHAPE.rows, VOCAB)).astype(np.float32)
    rows = pack_rows([(make_sequence(), 0)] * 2, SHAPE)
    rows.top_p[0], rows.top_k[1] = 0.0, 1
    assert jitted(logits, rows).tokens[:2].tolist() == logits[:2].argmax(-1).tolist()


def test_ties_at_the_border_of_top_k_all_stay():
    logits = np.full((1, VOCAB), -50.0, np.float32)
    logits[0, [10, 20, 300]] = [2.0, 1.0, 1.0]
    tokens = {draw_tokens(logits, [make_sequence(seed=s, top_k=2)])[0] for s in range(40)}
    assert tokens == {10, 20, 300}


@pytest.mark.parametrize("top_k", [VOCAB, 10 * VOCAB, 1 << 40])
def test_top_k_of_the_vocabulary_or_more_is_off(rng, top_k):
    logits = rng.normal(size=(8, VOCAB)).astype(np.float32)
    off = [make_sequence(seed=s) for s in range(8)]
    wide = [make_sequence(seed=s, top_k=top_k) for s in range(8)]
    assert draw_tokens(logits, wide) == draw_tokens(logits, off)


def test_a_seed_of_any_sign_and_size_fixes_the_draw(rng):
    logits = np.zeros((8, VOCAB), np.float32)
    seeds = [-1, -(1 << 63), (1 << 63) - 1, (1 << 64) - 1, 1 << 32, 1, 0, 1]
    tokens = draw_tokens(logits, [make_sequence(seed=seed) for seed in seeds])
    assert tokens == draw_tokens(logits, [make_sequence(seed=seed) for seed in seeds])
    assert tokens[0] == tokens[3] and tokens[5] == tokens[7]  # equal modulo 2**64
    assert len(set(tokens)) >= 5


def test_the_draw_changes_with_the_position():
    logits = np.zeros((8, VOCAB), np.float32)
    sequences = [make_sequence(output=(1,) * n) for n in range(8)]
    assert len(set(draw_tokens(logits, sequences))) > 5


def test_choices_of_a_forking_sequence_draw_with_their_own_seeds():
    logits = np.zeros((3, VOCAB), np.float32)
    parent = make_sequence(seed=20, n=3)
    parent.fork_pending = True
    drawn = draws([Chunk(parent, 0, 4, num_samples=3)])
    assert drawn == [(parent, 0), (parent, 1), (parent, 2)]
    tokens = np.asarray(jitted(np.zeros((16, VOCAB), np.float32), pack_rows(drawn, SHAPE)).tokens)
    alone = [make_sequence(seed=seed) for seed in (20, 21, 22)]
    assert tokens[:3].tolist() == draw_tokens(logits, alone)


def test_presence_and_frequency_do_not_see_the_prompt():
    logits = np.zeros((2, VOCAB), np.float32)
    logits[:, 3] = 1.0
    penalised = [make_sequence(temperature=0, presence_penalty=2.0, frequency_penalty=2.0)]
    assert draw_tokens(logits, penalised) == [3]
    assert draw_tokens(logits, [make_sequence(temperature=0, repetition_penalty=9.0)]) == [3]
    logits[:, 8] = 0.5
    assert draw_tokens(logits, [make_sequence(temperature=0, repetition_penalty=9.0)]) == [8]


def test_padding_ids_of_the_history_are_not_counted():
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 0] = 1.0
    sequence = make_sequence(output=(2, 2), temperature=0, frequency_penalty=2.0)
    assert draw_tokens(logits, [sequence]) == [0]


def test_a_forbidden_end_stays_forbidden_under_a_bias():
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [7, 12, 30]] = [9.0, 8.0, 7.0]
    params = {"min_tokens": 2, "stop_token_ids": (12,), "logit_bias": {7: 100}, "temperature": 0}
    assert draw_tokens(logits, [make_sequence(**params)]) == [30]
    assert draw_tokens(logits, [make_sequence(output=(1, 1), **params)]) == [7]


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.5, "min_p": 0.1}])
def test_a_row_without_any_legal_token_gets_id_0(params):
    logits = np.full((1, VOCAB), -np.inf, np.float32)
    assert draw_tokens(logits, [make_sequence(**params)]) == [0]


def test_minus_infinity_is_never_drawn():
    logits = np.full((8, VOCAB), -np.inf, np.float32)
    logits[:, [4, 699]] = 0.0
    tokens = draw_tokens(logits, [make_sequence(seed=s, top_p=0.99) for s in range(8)])
    assert set(tokens) == {4, 699}


def test_log_probabilities_are_raw_and_ranked(rng):
    logits = rng.normal(size=(2, VOCAB)).astype(np.float32)
    params = {"logprobs": 4, "logit_bias": {9: 100.0}, "temperature": 0, "repetition_penalty": 2.0}
    out = draw(logits, [make_sequence(**params)])
    raw = np.log(softmax(logits[0].astype(np.float64)))
    order = np.argsort(-raw)
    assert out.tokens[0] == 9
    assert out.rank[0] == 1 + (raw > raw[9]).sum()
    assert out.top_ids[0].tolist() == order[:4].tolist()
    np.testing.assert_allclose(out.logprob[0], raw[9], rtol=1e-6)
    np.testing.assert_allclose(out.top_logprobs[0], raw[order[:4]], rtol=1e-6)


def test_prompt_log_probabilities_score_given_tokens(rng):
    logits = rng.normal(size=(3, VOCAB)).astype(np.float32)
    targets = np.array([5, 600, 0], np.int32)
    out = jax.jit(position_logprobs, static_argnums=2)(logits, targets, 2)
    raw = np.log(np.stack([softmax(row.astype(np.float64)) for row in logits]))
    chosen = raw[np.arange(3), targets]
    np.testing.assert_allclose(out.logprob, chosen, rtol=1e-6)
    assert out.rank.tolist() == (1 + (raw > chosen[:, None]).sum(-1)).tolist()
    assert out.top_ids.tolist() == np.argsort(-raw)[:, :2].tolist()


@pytest.mark.parametrize("vocab", [1, 128, 129])
def test_any_size_of_vocabulary_works(vocab):
    logits = np.zeros((16, vocab), np.float32)
    logits[:, -1] = 50.0
    rows = pack_rows([(make_sequence(prompt=(0,), top_k=5, top_p=0.9), 0)] * 16, SHAPE)
    out = jax.jit(functools.partial(sample, max_logprobs=0))(jnp.asarray(logits), rows)
    assert out.tokens.tolist() == [vocab - 1] * 16


def test_packing_pads_with_greedy_rows_and_exact_words():
    rows = pack_rows([(make_sequence(seed=-2, top_k=1 << 40, output=(1, 2)), 0)], SHAPE)
    assert rows.keys[0].tolist() == [0xFFFFFFFF, 0xFFFFFFFE]
    assert rows.top_k[0] == 2**31 - 1
    assert rows.positions[0] == 6
    assert rows.is_greedy.tolist() == [False] + [True] * 15
    assert rows.num_logprobs.tolist() == [-1] * 16
    assert rows.history.shape == (16, 40) and not rows.history.any()


def test_packing_more_draws_than_rows_is_refused():
    with pytest.raises(AssertionError, match="2 draws do not fit 1 rows"):
        pack_rows([(make_sequence(), 0)] * 2, RowShape(rows=1, context=40, biases=8))
