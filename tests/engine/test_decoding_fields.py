"""Decoding fields through the whole engine; what each does to a draw is tested where it is made."""

import jax.numpy as jnp
import pytest

from paged_jax import InvalidRequest, SamplingParams

FEW = {"max_num_seqs": 2, "max_num_batched_tokens": 8, "max_model_len": 64}


def test_a_logits_processor_is_compiled_into_the_draw(make_llm) -> None:
    def no_repeats(logits, rows):
        row = jnp.arange(logits.shape[0], dtype=jnp.int32)[:, None]
        is_real = jnp.arange(rows.history.shape[1])[None, :] < rows.history_lens[:, None]
        at = jnp.where(is_real, rows.history, logits.shape[1])  # out of range: dropped
        return logits.at[row, at].set(-jnp.inf, mode="drop")

    llm = make_llm(logits_processor=no_repeats, **FEW)
    greedy = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    prompts = [[5, 6, 7], [8, 9]]
    outputs = llm.generate(prompts, greedy, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        ids = prompt + output.outputs[0].token_ids
        assert len(set(ids)) == len(ids) == len(prompt) + 40
    assert llm.engine.stats().num_compilations == 0


def test_processed_log_probabilities_are_told_where_the_engine_is_set_so(make_llm) -> None:
    llm = make_llm(logprobs_mode="processed_logprobs", **FEW)
    params = SamplingParams(allowed_token_ids=[70, 71], logprobs=3, max_tokens=4, temperature=0.0)
    (output,) = llm.generate([[5, 6, 7]], params, use_tqdm=False)
    for table in output.outputs[0].logprobs:
        finite = [entry.logprob for entry in table.values() if entry.logprob > -1e9]
        assert len(finite) == 2 and sum(jnp.exp(jnp.asarray(finite)).tolist()) == pytest.approx(1)


def test_dry_breaks_a_repetition_up(llm) -> None:
    prompt = [30, 31, 32, 33, 30, 31, 32, 33, 30, 31, 32]
    bias = {33: 60.0}
    plain, dry = (
        SamplingParams(temperature=0.0, max_tokens=1, logit_bias=bias, dry_multiplier=multiplier)
        for multiplier in (0.0, 100.0)
    )
    outputs = llm.generate([prompt] * 2, [plain, dry], use_tqdm=False)
    first, second = (output.outputs[0].token_ids for output in outputs)
    assert first == [33] and second != [33]


@pytest.mark.parametrize(
    "fields",
    [
        {"xtc_probability": 1.1}, {"xtc_threshold": -1}, {"dry_multiplier": "x"},
        {"dry_base": 0.5}, {"dry_allowed_length": 0}, {"dry_sequence_breakers": [""]},
        {"bad_words": [str(index) for index in range(129)]}, {"allowed_token_ids": []},
        {"structured_outputs": {}}, {"pooling": "mean"},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_value_is_refused_and_named(fields) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**fields)
    assert caught.value.param == next(iter(fields))
