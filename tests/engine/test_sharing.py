"""Sharing is physical: choices and equal prefixes hold the same blocks; writes copy the least."""

from paged_jax import LLM, SamplingParams

PROMPT = [3 + (7 * index + index // 11) % 250 for index in range(1000)]


def make_long_llm(make_llm, **options: object) -> LLM:
    return make_llm(max_model_len=1088, kv_cache_memory=32 << 20, **options)


def test_eight_choices_hold_the_prompt_once(make_llm) -> None:
    llm = make_long_llm(make_llm)
    engine = llm.engine
    params = SamplingParams(n=8, temperature=1.0, seed=1, max_tokens=4, ignore_eos=True)
    engine.add(PROMPT, params, request_id="a")

    used = []
    while engine.has_work:
        engine.step()
        used.append(engine.stats().usage.num_used)

    full, partial = divmod(len(PROMPT), 16)
    assert partial and full == 62
    assert max(used) == full + 8, "62 blocks once, and one last block for each choice"
    assert engine.stats().num_copies == 7, "the last holder of the shared block writes in place"
    assert used[-1] == 0
    engine.scheduler.check()


def test_prompt_that_fills_its_blocks_needs_no_copy(make_llm) -> None:
    llm = make_long_llm(make_llm)
    params = SamplingParams(n=8, temperature=1.0, seed=1, max_tokens=4, ignore_eos=True)
    llm.generate([PROMPT[:992]], params, use_tqdm=False)
    assert llm.engine.stats().num_copies == 0


def test_cold_prefix_of_32_requests_is_computed_once(make_llm) -> None:
    llm = make_long_llm(make_llm)
    prompts = [PROMPT + [3 + index] * 8 for index in range(32)]
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)

    outputs = llm.generate(prompts, params, use_tqdm=False)

    alone = llm.generate([prompts[17]], params, use_tqdm=False)[0]
    assert outputs[17].outputs[0].token_ids == alone.outputs[0].token_ids
    cached = [output.num_cached_tokens for output in outputs]
    assert cached == [0] + [992] * 31
