"""Answers of a given form, through the whole engine: with everything else a request may ask for."""

import asyncio
import json
import threading
from itertools import pairwise

import jsonschema
import numpy as np
import pytest
from schemas import random_schema

from paged_jax import LLM, AsyncEngine, InvalidRequest, SamplingParams, StructuredOutputsParams

Form = StructuredOutputsParams
EOS = 2
DIGITS = Form(regex="[0-9]{3}-[a-c]{1,4}x")


def form_params(form: Form, **params) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 150, "structured_outputs": form} | params)


def check_documents(llm: LLM, seeds: range) -> None:
    schemas = [random_schema(np.random.default_rng(seed)) for seed in seeds]
    forms = [Form(json=schema, disable_any_whitespace=True) for schema in schemas]
    params = [
        form_params(form, temperature=(0.0, 0.7, 1.3, 2.0)[seed % 4], seed=seed)
        for seed, form in zip(seeds, forms, strict=True)
    ]
    outputs = llm.generate(["Go"] * len(params), params, use_tqdm=False)
    for output, schema in zip(outputs, schemas, strict=True):
        (choice,) = output.outputs
        assert choice.finish_reason == "stop", (schema, choice.text)
        jsonschema.validate(json.loads(choice.text), schema)


def test_documents_are_valid_at_any_temperature_without_a_compilation(llm: LLM) -> None:
    before = llm.engine.stats().num_compilations
    check_documents(llm, range(24))
    assert llm.engine.stats().num_compilations == before


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_log_probabilities_beside_a_form_are_finite_and_of_known_tokens(llm: LLM, temperature):
    form = Form(json={"type": "object", "properties": {"a": {"enum": [12, "é"]}}}, named="x")
    params = form_params(form, temperature=temperature, seed=3, logprobs=20)
    choice = llm.generate(["Go"], params, use_tqdm=False)[0].outputs[0]
    assert choice.finish_reason == "stop" and isinstance(json.loads(choice.text), dict)
    assert len(choice.logprobs) == len(choice.token_ids)
    for token, table in zip(choice.token_ids, choice.logprobs, strict=True):
        assert np.isfinite(table[token].logprob) and len(table) >= 20
        assert max(table) < llm.get_tokenizer().size < llm.engine.config.model.vocab_size


@pytest.mark.slow
def test_200_random_schemas_give_valid_documents(llm: LLM) -> None:
    check_documents(llm, range(200))


def mixed_load() -> tuple[list[str], list[SamplingParams]]:
    """Requests with and without a form, of every kind."""
    kinds = (
        {"temperature": 1.5, "n": 3, "logprobs": 2},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"temperature": 1.0, "min_tokens": 12},
        {"temperature": 1.0, "bad_words": ["0", "1-"], "stop": ["cx"]},
        {"temperature": 1.0, "prompt_logprobs": 1, "top_k": 3},
    )
    params = [
        SamplingParams(
            **kind, seed=index, max_tokens=20, structured_outputs=form, ignore_eos=form is None
        )
        for index, (kind, form) in enumerate((k, f) for k in kinds for f in (DIGITS, None))
    ]
    return [f"{index} and the rest of it" for index in range(len(params))], params


@pytest.mark.parametrize("options", [{"num_gpu_blocks_override": 8, "block_size": 4}, {}])
def test_forms_hold_beside_others_under_preemption_and_whatever_the_order(
    make_llm, options
) -> None:
    prompts, params = mixed_load()
    told = []
    for is_on in (True, False):
        llm = make_llm(async_scheduling=is_on, max_num_seqs=8, max_model_len=64, **options)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        told.append([(c.token_ids, c.finish_reason) for o in outputs for c in o.outputs])
        assert not options or llm.engine.stats().num_preemptions, "trigger: nobody was preempted"
        llm.engine.scheduler.check()
    assert told[0] == told[1]
    for output, wanted in zip(outputs, params, strict=True):
        if wanted.structured_outputs:
            for choice in output.outputs:
                check_digits(choice.text, wanted)


def check_digits(text: str, wanted: SamplingParams) -> None:
    head, tail = text.split("-")
    assert len(head) == 3 and head.isdigit()
    if wanted.stop and not tail.endswith("x"):
        assert set(tail) <= set("abc")
        return
    assert tail.endswith("x") and set(tail[:-1]) <= set("abc")
    if wanted.bad_words:
        assert "0" not in text and "1-" not in text


def test_minimum_length_is_filled_with_ends_where_the_form_is_complete(llm: LLM) -> None:
    params = form_params(Form(choice=["yes"]), min_tokens=6)
    (output,) = llm.generate("Go", params, use_tqdm=False)
    (choice,) = output.outputs
    assert choice.text == "yes" and choice.token_ids[3:] == [EOS] * 3


def test_log_probabilities_are_the_models_own(llm: LLM) -> None:
    params = form_params(Form(choice=["ab"]), logprobs=3, temperature=0.0)
    (output,) = llm.generate("Go", params, use_tqdm=False)
    (free,) = llm.generate("Go", SamplingParams(logprobs=3, temperature=0.0), use_tqdm=False)
    forced, own = output.outputs[0].logprobs[0], free.outputs[0].logprobs[0]
    assert {id: forced[id].logprob for id in own} == {id: own[id].logprob for id in own}
    assert forced[output.outputs[0].token_ids[0]].rank > 1


def test_allowed_ids_and_bad_words_narrow_the_draw(llm: LLM) -> None:
    allowed = SamplingParams(allowed_token_ids=[70, 71, 99], max_tokens=30, seed=3)
    word = llm.get_tokenizer().encode("the")
    assert len(word) == 1
    bad = SamplingParams(
        bad_words=["the", "FF"],
        allowed_token_ids=None,
        max_tokens=30,
        seed=4,
        logit_bias={word[0]: 90.0, llm.get_tokenizer().encode("F")[0]: 90.0},
    )
    one, two = llm.generate(["Go", "Go"], [allowed, bad], use_tqdm=False)
    assert set(one.outputs[0].token_ids) <= {70, 71, 99}
    ids, (twice, _) = two.outputs[0].token_ids, llm.get_tokenizer().encode("FF")
    assert twice in ids and (twice, twice) not in pairwise(ids) and word[0] not in ids


@pytest.mark.parametrize("form", [Form(json={"type": "strng"}), Form(regex="(")])
def test_a_bad_form_reaches_no_engine(llm: LLM, form: Form) -> None:
    with pytest.raises(InvalidRequest, match="is refused"):
        llm.generate("Go", form_params(form), use_tqdm=False)
    assert not llm.engine.has_work


def test_an_answer_that_cannot_follow_its_grammar_fails_alone(llm: LLM, monkeypatch) -> None:
    engine = llm.engine
    engine.add([5], form_params(DIGITS), request_id="bad")
    engine.add([5], SamplingParams(max_tokens=4, ignore_eos=True), request_id="good")
    state = engine.rules._rules["bad"].state(0, ())
    state.matcher.consume_token(EOS)  # what no mask allows
    deltas = [delta for _ in range(8) if engine.has_work for delta in engine.step()]
    ends = {delta.request_id: delta.error for delta in deltas if delta.finished}
    assert ends == {"bad": "the request failed: its grammar became too complex", "good": None}
    assert engine.stats().usage.num_used == 0


def test_steps_go_on_while_a_grammar_compiles(tiny_folder, make_llm, monkeypatch) -> None:
    engine = AsyncEngine(make_llm().engine)
    compiler, release = engine.engine.rules.compiler, threading.Event()
    compile_now = compiler._compile
    monkeypatch.setattr(compiler, "_compile", lambda form: release.wait(30) and compile_now(form))

    async def ask(params: SamplingParams, key: str) -> str:
        text = ""
        async for delta in engine.generate([5, 6], params, request_id=key):
            text += "".join(choice.text for choice in delta.choices)
        return text

    async def both() -> str:
        formed = asyncio.create_task(ask(form_params(Form(choice=["yes"])), "formed"))
        await asyncio.wait_for(ask(SamplingParams(max_tokens=9), "plain"), 60)
        assert not formed.done()
        release.set()
        return await formed

    engine.start()
    try:
        assert asyncio.run(both()) == "yes"
    finally:
        engine.stop()
