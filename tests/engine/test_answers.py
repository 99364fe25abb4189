"""What a request gets back: ids, text, log-probabilities and ends, against the float64 oracle."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tiny import greedy, oracle_logits

from paged_jax import LLM, InvalidRequest, SamplingParams
from paged_jax.models.params import ModelParams

PROMPT = [3 + (11 * index) % 240 for index in range(37)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def run(llm: LLM, prompt: object, params: SamplingParams):
    return llm.generate(prompt, params, use_tqdm=False)[0]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def text(llm: LLM) -> str:
    return run(llm, PROMPT, GREEDY).outputs[0].text


def test_greedy_ids_equal_the_oracle(llm: LLM, plain_params: ModelParams) -> None:
    found = run(llm, PROMPT, GREEDY).outputs[0].token_ids
    assert found == greedy(llm.engine.config.model, plain_params, PROMPT, 16)


def test_logprobs_equal_the_oracle(llm: LLM, plain_params: ModelParams) -> None:
    choice = run(llm, PROMPT, replace(GREEDY, logprobs=3)).outputs[0]
    ids = [*PROMPT, *choice.token_ids]
    table = log_softmax(oracle_logits(llm.engine.config.model, plain_params, ids))

    assert len(choice.logprobs) == 16
    for at, (token, entries) in enumerate(zip(choice.token_ids, choice.logprobs, strict=True)):
        row = table[len(PROMPT) - 1 + at]
        likeliest = np.argsort(-row[: llm.get_tokenizer().size])[:3].tolist()
        assert list(entries) == list(dict.fromkeys([token, *likeliest]))
        for other, entry in entries.items():
            assert entry.logprob == pytest.approx(row[other], abs=1e-4)
    assert choice.cumulative_logprob == pytest.approx(
        sum(e[t].logprob for t, e in zip(choice.token_ids, choice.logprobs, strict=True))
    )


def test_chosen_token_outside_the_top_is_listed_first_with_its_rank(llm: LLM) -> None:
    params = SamplingParams(logprobs=1, temperature=2.0, seed=5, max_tokens=16, ignore_eos=True)
    choice = run(llm, PROMPT, params).outputs[0]
    ranks = []
    for token, entries in zip(choice.token_ids, choice.logprobs, strict=True):
        assert next(iter(entries)) == token
        assert len(entries) == (1 if entries[token].rank == 1 else 2)
        ranks.append(entries[token].rank)
    assert max(ranks) > 1, "trigger: only likeliest tokens were drawn"


def test_zero_logprobs_lists_the_chosen_token(llm: LLM) -> None:
    choice = run(llm, PROMPT, replace(GREEDY, logprobs=0)).outputs[0]
    assert [list(entries) for entries in choice.logprobs] == [[t] for t in choice.token_ids]
    assert run(llm, PROMPT, GREEDY).outputs[0].logprobs is None


def test_prompt_logprobs_equal_the_oracle_and_do_not_read_the_cache(
    make_llm, plain_params: ModelParams
) -> None:
    llm = make_llm(max_num_batched_tokens=16, max_num_seqs=8)
    params = replace(GREEDY, max_tokens=1, prompt_logprobs=2)
    for _ in range(2):
        output = run(llm, PROMPT, params)
        table = log_softmax(oracle_logits(llm.engine.config.model, plain_params, PROMPT))
        assert output.prompt_logprobs[0] is None and output.num_cached_tokens == 0
        assert len(output.prompt_logprobs) == len(PROMPT)
        for at, (token, entries) in enumerate(
            zip(PROMPT[1:], output.prompt_logprobs[1:], strict=True)
        ):
            assert next(iter(entries)) == token and 2 <= len(entries) <= 3
            assert entries[token].logprob == pytest.approx(table[at, token], abs=1e-4)


def test_stop_string_inside_tokens_cuts_the_text(llm: LLM, text: str) -> None:
    stop = text[5:8]
    at = text.index(stop)
    cut = run(llm, PROMPT, replace(GREEDY, stop=["zzzz", stop])).outputs[0]
    kept = run(llm, PROMPT, replace(GREEDY, stop=stop, include_stop_str_in_output=True)).outputs[0]

    assert (cut.text, cut.finish_reason, cut.stop_reason) == (text[:at], "stop", stop)
    assert kept.text == text[: at + len(stop)]
    assert llm.engine.num_live == 0 and not llm.engine.has_work


def test_near_miss_of_a_stop_string_is_released(llm: LLM, text: str) -> None:
    choice = run(llm, PROMPT, replace(GREEDY, stop=[text[-3:] + "\0"])).outputs[0]
    assert (choice.text, choice.finish_reason, choice.stop_reason) == (text, "length", None)


def test_stop_string_before_min_tokens_is_ignored(llm: LLM, text: str) -> None:
    params = replace(GREEDY, stop=[text[0]], min_tokens=15)
    assert len(run(llm, PROMPT, params).outputs[0].token_ids) >= 15


def test_stop_id_ends_also_under_ignore_eos(llm: LLM) -> None:
    ids = run(llm, PROMPT, GREEDY).outputs[0].token_ids
    choice = run(llm, PROMPT, replace(GREEDY, stop_token_ids=[ids[3]])).outputs[0]
    at = ids.index(ids[3])
    assert choice.token_ids == ids[: at + 1]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", ids[3])


def test_eos_ends_unless_ignored_and_not_before_min_tokens(llm: LLM) -> None:
    bias = {2: 100.0}
    base = replace(GREEDY, logit_bias=bias, ignore_eos=False)
    ended = run(llm, PROMPT, base).outputs[0]
    assert (ended.token_ids, ended.finish_reason, ended.stop_reason) == ([2], "stop", None)
    assert ended.text == ""
    ignored = run(llm, PROMPT, replace(base, ignore_eos=True)).outputs[0]
    assert ignored.token_ids == [2] * 16 and ignored.finish_reason == "length"
    late = run(llm, PROMPT, replace(base, min_tokens=5)).outputs[0]
    assert late.token_ids[5:] == [2] and 2 not in late.token_ids[:5]


def test_context_end_is_exact(llm: LLM) -> None:
    limit = llm.engine.config.scheduler.max_model_len
    params = replace(GREEDY, max_tokens=None)
    last = run(llm, [5] * (limit - 1), params).outputs[0]
    assert len(last.token_ids) == 1 and last.finish_reason == "length"
    assert len(run(llm, [5] * (limit - 9), params).outputs[0].token_ids) == 9
    with pytest.raises(InvalidRequest, match=f"maximum context length is {limit}.*has {limit}"):
        run(llm, [5] * limit, params)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ("", GREEDY, "prompt"),
        ([[]], GREEDY, "prompt"),
        ([320], GREEDY, "out of vocabulary"),
        ([-1], GREEDY, "out of vocabulary"),
        ([True], GREEDY, "token ids"),
        ([1.5], GREEDY, "token ids"),
        ([5], replace(GREEDY, logprobs=21), "--max-logprobs"),
        ([5], replace(GREEDY, prompt_logprobs=21), "--max-logprobs"),
        ([5], replace(GREEDY, stop_token_ids=[320]), "stop_token_ids"),
        ([5], replace(GREEDY, logit_bias={320: 1.0}), "logit_bias.*vocabulary size"),
        ([5], replace(GREEDY, max_tokens=257), "max_tokens"),
        ([5], replace(GREEDY, n=33), "--max-num-seqs"),
    ],
)
def test_what_cannot_be_served_is_refused_and_the_engine_goes_on(
    llm: LLM, prompt: object, params: SamplingParams, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        run(llm, prompt, params)
    assert len(run(llm, "still there", GREEDY).outputs[0].token_ids) == 16


def test_each_prompt_has_its_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=n, seed=n, ignore_eos=True) for n in (1, 5, 9)]
    outputs = llm.generate(["one", "two", "one"], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 5, 9]
    with pytest.raises(ValueError, match="3 prompts need 3 sampling_params"):
        llm.generate(["one", "two", "three"], params[:2], use_tqdm=False)


def test_forms_of_a_prompt_agree(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("the thing")
    forms: list[object] = ["the thing", ids, {"prompt": "the thing"}, {"prompt_token_ids": ids}]
    texts = {run(llm, form, GREEDY).outputs[0].text for form in forms}
    assert len(texts) == 1


def test_cache_salt_separates_requests(llm: LLM) -> None:
    prompt = [9 + index for index in range(64)]
    salted = {"prompt_token_ids": prompt, "cache_salt": "mine"}
    assert [run(llm, form, GREEDY).num_cached_tokens for form in (salted, prompt, salted)] == [
        0,
        0,
        48,
    ]


def test_chat_goes_through_the_template(llm: LLM) -> None:
    output = llm.chat([{"role": "user", "content": "Hi"}], GREEDY, use_tqdm=False)[0]
    rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert output.prompt_token_ids == llm.get_tokenizer().encode(rendered, add_special_tokens=False)
    both = llm.chat([[{"role": "user", "content": "Hi"}]] * 2, GREEDY, use_tqdm=False)
    assert [o.outputs[0].text for o in both] == [output.outputs[0].text] * 2


def test_metrics_of_an_output_are_ordered(llm: LLM) -> None:
    metrics = run(llm, PROMPT, GREEDY).metrics
    times = (
        metrics.arrival_time,
        metrics.first_scheduled_time,
        metrics.first_token_time,
        metrics.last_token_time,
    )
    assert list(times) == sorted(times) and metrics.num_generation_tokens == 16


def test_repetition_penalty_counts_the_prompt(llm: LLM, plain_params: ModelParams) -> None:
    logits = oracle_logits(llm.engine.config.model, plain_params, PROMPT)[-1]
    seen = np.isin(np.arange(len(logits)), PROMPT)
    punished = np.where(seen, np.where(logits > 0, logits / 1.8, logits * 1.8), logits)
    found = run(llm, PROMPT, replace(GREEDY, max_tokens=1, repetition_penalty=1.8)).outputs[0]
    assert found.token_ids == [int(punished.argmax())]
    only_output = replace(GREEDY, max_tokens=1, presence_penalty=2.0, frequency_penalty=2.0)
    assert run(llm, PROMPT, only_output).outputs[0].token_ids == [int(logits.argmax())]


def test_ids_without_a_token_are_never_drawn(llm: LLM) -> None:
    size = llm.get_tokenizer().size
    assert size < llm.engine.config.model.vocab_size
    params = SamplingParams(temperature=2.0, max_tokens=100, ignore_eos=True)
    outputs = llm.generate(["a"] * 8, params, use_tqdm=False)
    assert max(max(output.outputs[0].token_ids) for output in outputs) < size


def test_every_logprob_is_finite(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=30, logprobs=5, ignore_eos=True)
    for entries in run(llm, PROMPT, params).outputs[0].logprobs:
        assert all(math.isfinite(entry.logprob) for entry in entries.values())
