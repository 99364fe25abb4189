"""An engine with a one-byte KV pool: the same ids whatever the batch, chunks, cache or pressure."""

from dataclasses import replace

import pytest
from test_invariance import ids, make_params, make_prompts

from paged_jax import LLM
from paged_jax.config import OptionError
from paged_jax.engine_args import EngineArgs

NUM = 8


@pytest.fixture(scope="module", params=["int8", "fp8"])
def narrow(request, tiny_folder):
    """A roomy engine, the options others are made with, and what each request gives alone."""
    options = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 8}
    options |= {"kv_cache_memory": 8 << 20, "kv_cache_dtype": request.param}
    with LLM(tiny_folder, max_num_batched_tokens=32, **options) as llm:
        alone = []
        for prompt, params in zip(make_prompts(NUM), make_params(NUM), strict=True):
            assert llm.reset_prefix_cache()
            alone += ids(llm, [prompt], [params])
        yield llm, options, alone


def test_in_a_batch_and_from_a_warm_cache_equals_alone(narrow):
    llm, _, alone = narrow
    assert llm.reset_prefix_cache()
    assert ids(llm, make_prompts(NUM), make_params(NUM)) == alone
    before = llm.engine.stats().prefix_hits
    assert ids(llm, make_prompts(NUM), make_params(NUM)) == alone
    assert llm.engine.stats().prefix_hits > before, "trigger: nothing was cached"


def test_chunked_and_preempted_equals_whole(narrow, make_llm):
    _, options, alone = narrow
    tight = make_llm(**options, num_gpu_blocks_override=16, max_num_batched_tokens=16)
    assert ids(tight, make_prompts(NUM), make_params(NUM)) == alone
    assert tight.engine.stats().num_preemptions > 0, "trigger: nothing was preempted"


def test_choices_that_share_blocks_equal_single_requests(narrow):
    llm, _, _ = narrow
    (prompt,) = make_prompts(1, seed=3, lengths=(35,))
    forked = llm.generate([prompt], make_choices(3, seed=11), use_tqdm=False)[0]
    single = [make_choices(1, seed=11 + index) for index in range(3)]
    assert [list(choice.token_ids) for choice in forked.outputs] == ids(llm, [prompt] * 3, single)


def make_choices(n: int, *, seed: int):
    (params,) = make_params(1)
    return replace(params, n=n, seed=seed, temperature=1.0)


def test_the_pool_holds_more_tokens_in_the_same_memory(narrow, llm):
    small, _, _ = narrow
    blocks, others = (each.engine.config.cache.num_blocks for each in (small, llm))
    kept = 16 + 4  # bytes of a head of 16 and its scale, against 64
    assert blocks == others * 64 // kept


def test_an_unknown_type_is_refused_with_the_legal_ones():
    legal = "auto, bfloat16, float32, int8, fp8, fp8_e4m3"
    with pytest.raises(OptionError, match=f"--kv-cache-dtype must be one of {legal}, not 'int4'"):
        EngineArgs(kv_cache_dtype="int4").validate()
