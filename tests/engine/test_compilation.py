"""After warm-up nothing compiles; the pool is updated in place; a step's memory is its own."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax
import numpy as np
import pytest

from paged_jax import LLM, SamplingParams
from paged_jax.compiled.compile_counter import CompileCounter
from paged_jax.compiled.programs import Programs
from paged_jax.device.kv_pool import KVPool, pool_struct


def make_mixed_load(count: int) -> tuple[list[list[int]], list[SamplingParams]]:
    draw = random.Random(3)
    prompts = [[draw.randrange(3, 260) for _ in range(draw.randint(1, 120))] for _ in range(count)]
    params = [
        SamplingParams(
            n=draw.choice([1, 1, 1, 3]),
            temperature=draw.choice([0.0, 0.7]),
            top_p=draw.choice([1.0, 0.8]),
            top_k=draw.choice([0, 20]),
            presence_penalty=draw.choice([0.0, 0.5]),
            logprobs=draw.choice([None, 0, 5]),
            prompt_logprobs=draw.choice([None, None, 2]),
            max_tokens=draw.randint(1, 12),
        )
        for _ in range(count)
    ]
    return prompts, params


def test_mixed_load_of_200_requests_compiles_nothing(llm: LLM) -> None:
    prompts, params = make_mixed_load(200)
    llm.generate(prompts, params, use_tqdm=False)
    assert llm.engine.stats().num_compilations == 0


def test_a_compilation_is_counted_and_named(caplog) -> None:
    def tripled(x: jax.Array) -> jax.Array:
        return x * 3 + 1

    counter = CompileCounter()
    with counter.watch():
        jax.jit(tripled)(np.arange(17, dtype=np.int32))
    assert counter.count == 1
    assert "jit(tripled) was compiled while serving" in caplog.text


def test_a_shape_that_was_not_compiled_is_an_error_that_says_what_was(llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"no program copy 3 was compiled; its sizes are 16"):
        llm.engine.executor.programs.call("copy", 3, lambda: None)


def test_a_type_that_was_not_compiled_is_an_error_that_names_the_argument(llm: LLM) -> None:
    programs, wrong = llm.engine.executor.programs, np.zeros(16, np.int16)
    with pytest.raises(TypeError, match=r"compiled with int32\[16\] and called with int16\[16\]"):
        programs.call("copy", 16, lambda: None, llm.engine.executor.pool, wrong, wrong)


def test_a_compilation_in_another_thread_is_not_counted() -> None:
    lowered = jax.jit(lambda x: x * 5 + 2).lower(np.arange(19, dtype=np.int32))
    counter = CompileCounter()
    with counter.watch(), ThreadPoolExecutor(1) as other:
        other.submit(lowered.compile).result()
    assert counter.count == 0


def test_one_program_that_does_not_compile_ends_the_start(llm: LLM, monkeypatch) -> None:
    programs = Programs(llm.engine.config)

    class Broken:
        def compile(self) -> None:
            raise RuntimeError("no such instruction")

    monkeypatch.setattr(programs, "lower_backbone", lambda *_: Broken())
    with pytest.raises(RuntimeError, match="no such instruction"):
        programs.warm_up(llm.engine.params, llm.engine.executor.pool)


@pytest.fixture(scope="module")
def analyses(llm: LLM) -> dict[int, tuple[object, KVPool]]:
    """Memory analysis of the largest backbone for pools of 1,000 and of 10,000 blocks."""
    found = {}
    for num_blocks in (1_000, 10_000):
        config = llm.engine.config
        config = replace(config, cache=replace(config.cache, num_blocks=num_blocks))
        pool = pool_struct(config.model, config.cache)
        programs = Programs(config)
        lowered = programs.lower_backbone(llm.engine.params, pool, programs.token_buckets[-1])
        found[num_blocks] = (lowered.compile().memory_analysis(), pool)
    return found


def test_temporary_memory_does_not_grow_with_the_pool(analyses) -> None:
    small, large = (analyses[n][0].temp_size_in_bytes for n in (1_000, 10_000))
    assert small == large


@pytest.mark.parametrize("num_blocks", [1_000, 10_000])
def test_the_whole_pool_is_updated_in_place(analyses, num_blocks: int) -> None:
    analysis, pool = analyses[num_blocks]
    size = sum(np.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(pool))
    assert analysis.alias_size_in_bytes == size
