"""Masks, XTC, processed log-probabilities and a user's function, against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling_oracle import SHAPE, VOCAB, change_logits, distribution, make_mixed, make_sequence

from paged_jax.device.draw_extras import DrawExtras, exclude_top_choices
from paged_jax.device.sampling import sample
from paged_jax.device.sampling_rows import RowShape, pack_rows

WORDS = -(-VOCAB // 32)
MASKED = RowShape(SHAPE.rows, SHAPE.context, SHAPE.biases, WORDS)


@functools.cache
def jitted(mode: str = "raw_logprobs"):
    return jax.jit(functools.partial(sample, max_logprobs=4, extras=DrawExtras(mode)))


def bits(ids) -> np.ndarray:
    flags = np.zeros(WORDS * 32, np.uint8)
    flags[list(ids)] = 1
    return np.packbits(flags, bitorder="little").view(np.uint32)


def test_masked_rows_draw_what_is_allowed_and_the_others_are_as_before(rng):
    logits = rng.normal(size=(SHAPE.rows, VOCAB)).astype(np.float32)
    drawn = [(sequence, 0) for sequence in make_mixed(rng, min_tokens=0)]
    allowed = {row: rng.choice(VOCAB, 5, replace=False) for row in range(0, SHAPE.rows, 2)}
    masks = {row: bits(ids) for row, ids in allowed.items()}
    plain = jitted()(logits, pack_rows(drawn, MASKED)).tokens.tolist()
    for row, token in enumerate(jitted()(logits, pack_rows(drawn, MASKED, masks)).tokens.tolist()):
        assert token in allowed[row] if row in allowed else token == plain[row]


def test_a_greedy_masked_row_takes_its_likeliest_allowed_id(rng):
    logits = rng.normal(size=(SHAPE.rows, VOCAB)).astype(np.float32)
    drawn = [(make_sequence(temperature=0), 0)] * SHAPE.rows
    ids = np.arange(0, VOCAB, 7)
    rows = pack_rows(drawn, MASKED, dict.fromkeys(range(SHAPE.rows), bits(ids)))
    assert not rows.is_plain
    tokens = jitted()(logits, rows).tokens
    assert tokens.tolist() == (ids[logits[:, ids].argmax(axis=1)]).tolist()


def expected_xtc(weights: np.ndarray, threshold: float) -> np.ndarray:
    top = np.flatnonzero(weights >= threshold * weights.sum())
    struck = [i for i in top if weights[i] > weights[top].min()]
    return np.where(np.isin(np.arange(len(weights)), struck), 0, weights)


@pytest.mark.parametrize("threshold", [0.05, 0.1, 0.3, 0.6])
def test_top_choices_but_the_least_of_them_are_excluded(rng, threshold):
    weights = rng.dirichlet(np.full(8, 0.7), SHAPE.rows).astype(np.float32) * 3
    sequence = make_sequence(xtc_probability=1.0, xtc_threshold=threshold)
    rows = pack_rows([(sequence, 0)] * SHAPE.rows, SHAPE)
    found = np.asarray(exclude_top_choices(jnp.asarray(weights), rows))
    assert np.array_equal(found, np.stack([expected_xtc(row, threshold) for row in weights]))


def test_choices_are_excluded_as_often_as_asked_and_never_from_greedy_rows():
    logits = np.zeros((SHAPE.rows, VOCAB), np.float32)
    logits[:, 0], logits[:, 1] = 20.0, 19.0
    half = [(make_sequence(seed=seed, xtc_probability=0.5), 0) for seed in range(15)]
    rows = pack_rows([*half, (make_sequence(temperature=0, xtc_probability=1.0), 0)], SHAPE)
    counts = np.zeros((SHAPE.rows, 2), int)
    for position in range(60):
        at = rows.replace(positions=np.full(SHAPE.rows, position, np.int32))
        tokens = np.asarray(jitted()(logits, at).tokens)
        counts += tokens[:, None] == [0, 1]
    assert counts[15].tolist() == [60, 0]
    first = 0.5 / (1 + np.exp(-1))  # not excluded, and then the likelier of two
    assert counts[:15, 0].sum() / 900 == pytest.approx(first, abs=0.05)


@pytest.mark.parametrize("mode", ["processed_logprobs", "processed_logits", "raw_logits"])
def test_what_is_told_is_what_the_mode_says(rng, mode):
    logits = rng.normal(size=(SHAPE.rows, VOCAB)).astype(np.float32)
    sequences = [make_sequence(temperature=0, logprobs=4), *make_mixed(rng, logprobs=4)[1:]]
    out = jitted(mode)(logits, pack_rows([(sequence, 0) for sequence in sequences], SHAPE))
    for row, sequence in enumerate(sequences):
        token, told = int(out.tokens[row]), float(out.logprob[row])
        changed = change_logits(logits[row], sequence)
        expected = logits[row, token] if mode == "raw_logits" else changed[token]
        if mode == "processed_logprobs" and not row:
            expected -= np.logaddexp.reduce(changed)
        elif mode == "processed_logprobs":
            expected = np.log(distribution(logits[row], sequence)[token])
        elif mode == "processed_logits" and row:
            expected /= sequence.request.sampling.temperature
        assert told == pytest.approx(expected, abs=1e-3)


def test_a_function_of_the_users_changes_the_logits_and_sees_the_ids(rng):
    def only_seen(logits, rows):
        seen = jax.nn.one_hot(rows.history, logits.shape[1]).sum(axis=1) > 0
        return jnp.where(seen, logits, -jnp.inf)

    extras = DrawExtras(processor=only_seen)
    draw = jax.jit(functools.partial(sample, max_logprobs=0, extras=extras))
    shape = RowShape(SHAPE.rows, SHAPE.context, SHAPE.biases, has_histories=True)
    sequences = [make_sequence(temperature=t, output=(9, 8)) for t in (0.0, 1.0)] * 8
    rows = pack_rows([(sequence, 0) for sequence in sequences], shape)
    logits = rng.normal(size=(SHAPE.rows, VOCAB)).astype(np.float32)
    assert not rows.is_plain
    assert set(draw(logits, rows).tokens.tolist()) <= {0, 3, 5, 650, 9, 8}
