"""The same ids whatever the batch, chunks, cache, blocks or pressure: tiny model, float32."""

import random
from itertools import combinations

import pytest

from paged_jax import LLM, SamplingParams
from paged_jax.outputs import CompletionOutput

LENGTHS = (1, 3, 15, 16, 17, 33, 64, 90)


def make_prompts(
    count: int, *, seed: int = 0, lengths: tuple[int, ...] = LENGTHS
) -> list[list[int]]:
    draw = random.Random(seed)
    return [
        [draw.randrange(3, 260) for _ in range(lengths[index % len(lengths)])]
        for index in range(count)
    ]


def make_params(count: int, *, max_tokens: int = 24) -> list[SamplingParams]:
    """Greedy, seeded, filtered and penalised rows, in turn."""
    kinds: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 7},
        {"temperature": 0.8, "seed": 8, "top_p": 0.9, "top_k": 40},
        {"temperature": 1.0, "seed": 9, "presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"temperature": 0.0, "repetition_penalty": 1.3, "min_tokens": 5},
        {"temperature": 1.2, "seed": -3, "min_p": 0.05, "logit_bias": {40: 2.0, 41: -100.0}},
    ]
    return [
        SamplingParams(**kinds[index % len(kinds)], max_tokens=max_tokens, ignore_eos=True)  # type: ignore[arg-type]
        for index in range(count)
    ]


def ids(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[int]]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[list[int]]:
    """Each request alone, on the roomy engine, the cache emptied before each."""
    alone = []
    for prompt, params in zip(make_prompts(32), make_params(32), strict=True):
        assert llm.reset_prefix_cache()
        alone += ids(llm, [prompt], [params])
    return alone


def test_alone_equals_in_a_batch_of_32(llm: LLM, expected: list[list[int]]) -> None:
    assert llm.reset_prefix_cache()
    assert ids(llm, make_prompts(32), make_params(32)) == expected


def test_warm_cache_equals_cold(llm: LLM, expected: list[list[int]]) -> None:
    ids(llm, make_prompts(32), make_params(32))
    before = llm.engine.stats().prefix_hits

    warm = ids(llm, make_prompts(32), make_params(32))

    assert warm == expected
    assert llm.engine.stats().prefix_hits > before, "trigger: nothing was cached"


def test_every_pair_of_features_gives_warm_what_it_gives_cold(llm: LLM) -> None:
    features = (
        {"prompt_logprobs": 1},
        {"logprobs": 2},
        {"n": 2},
        {"stop": ["e"]},
        {"min_tokens": 4},
    )
    prompts = make_prompts(10, seed=11, lengths=(37,))
    hits = 0
    for prompt, (one, other) in zip(prompts, combinations(features, 2), strict=True):
        params = SamplingParams(temperature=0.0, max_tokens=6, **(one | other))  # type: ignore[arg-type]
        cold, warm = (llm.generate([prompt], params, use_tqdm=False)[0] for _ in range(2))
        hits += warm.num_cached_tokens
        assert [told_of(choice) for choice in warm.outputs] == [
            told_of(choice) for choice in cold.outputs
        ]
        assert (warm.prompt_logprobs is None) == (cold.prompt_logprobs is None)
    assert hits >= 6 * 32, "trigger: nothing was cached"


def told_of(choice: CompletionOutput) -> tuple[object, ...]:
    tables = [] if choice.logprobs is None else [list(table) for table in choice.logprobs]
    return (choice.text, choice.token_ids, choice.finish_reason, tables)


def test_hit_on_the_whole_prompt_computes_its_last_block(llm: LLM) -> None:
    prompt, params = make_prompts(1, seed=5, lengths=(32,)), make_params(1)
    cold = llm.generate(prompt, params, use_tqdm=False)[0]
    warm = llm.generate(prompt, params, use_tqdm=False)[0]

    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 16)
    assert cold.outputs[0].token_ids == warm.outputs[0].token_ids


def test_chunked_prefill_equals_whole(make_llm, expected: list[list[int]]) -> None:
    chunked = make_llm(max_num_batched_tokens=16, max_num_seqs=8)
    assert ids(chunked, make_prompts(32), make_params(32)) == expected


def test_preempted_equals_undisturbed(make_llm, expected: list[list[int]]) -> None:
    tight = make_llm(num_gpu_blocks_override=20)

    assert ids(tight, make_prompts(32), make_params(32)) == expected

    assert tight.engine.stats().num_preemptions > 0, "trigger: nothing was preempted"
    assert tight.engine.stats().usage.num_used == 0


@pytest.mark.parametrize("block_size", [1, 8, 64])
def test_block_sizes_agree(make_llm, expected: list[list[int]], block_size: int) -> None:
    other = make_llm(block_size=block_size)
    assert ids(other, make_prompts(32), make_params(32)) == expected


def test_cache_off_agrees(make_llm, expected: list[list[int]]) -> None:
    uncached = make_llm(enable_prefix_caching=False)
    assert ids(uncached, make_prompts(32), make_params(32)) == expected
    assert uncached.engine.stats().prefix_hits == 0


def test_shuffled_block_order_agrees(llm: LLM, expected: list[list[int]]) -> None:
    assert llm.reset_prefix_cache()
    pool = llm.engine.scheduler.pool
    blocks = [block for _ in range(pool.num_free) for block in pool.allocate(1)]
    random.Random(1).shuffle(blocks)
    for block in blocks:
        pool.release([block])

    assert ids(llm, make_prompts(32), make_params(32)) == expected


@pytest.mark.parametrize("prompt_len", [5, 16, 35])
def test_n_seeded_choices_equal_single_requests_with_their_seeds(llm: LLM, prompt_len: int) -> None:
    prompt = make_prompts(1, seed=prompt_len, lengths=(prompt_len,))[0]
    fields = {"temperature": 1.0, "max_tokens": 20, "ignore_eos": True}

    forked = llm.generate([prompt], SamplingParams(n=4, seed=11, **fields), use_tqdm=False)[0]  # type: ignore[arg-type]
    single = [SamplingParams(seed=11 + index, **fields) for index in range(4)]  # type: ignore[arg-type]

    texts = [list(choice.token_ids) for choice in forked.outputs]
    assert texts == ids(llm, [prompt] * 4, single)
    assert len({tuple(text) for text in texts}) == 4, "trigger: the choices do not differ"


def test_greedy_choices_are_equal(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=0.0, max_tokens=8)
    choices = llm.generate("the thing", params, use_tqdm=False)[0].outputs
    assert len({tuple(choice.token_ids) for choice in choices}) == 1


def test_unseeded_requests_differ(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=16, ignore_eos=True)
    outputs = llm.generate(["the thing"] * 4, params, use_tqdm=False)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) > 1
