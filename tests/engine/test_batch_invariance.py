"""With --batch-invariant tokens and log-probabilities are equal to the bit, and a step is one
program.

bfloat16, as served: keys and values are rounded, and sums in another order show.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_options import SMALL
from tiny import make_tiny_folder

from paged_jax import LLM, SamplingParams, score
from paged_jax.config import OptionError
from paged_jax.outputs import RequestOutput

pytestmark = pytest.mark.cpu_kernels

STEADY: dict[str, object] = {"batch_invariant": True, "dtype": "bfloat16", "max_num_seqs": 32}
LENGTHS = (1, 17, 33, 64, 65, 90, 16, 129)
KINDS: tuple[dict[str, object], ...] = (
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 1.0, "seed": 7, "logprobs": 1, "prompt_logprobs": 2},
    {"temperature": 0.8, "seed": 8, "top_p": 0.9, "top_k": 40, "logprobs": 3},
    {"temperature": 1.2, "seed": 9, "min_p": 0.05, "presence_penalty": 0.5, "logprobs": 0},
)

Told = list[tuple[object, ...]]


def make_prompts(count: int) -> list[list[int]]:
    """Prompts of many lengths; every other begins as one before it."""
    text = [(37 * i * i + 11 * i) % 250 + 3 for i in range(200)]
    return [
        text[: LENGTHS[i % 8]] if i % 2 else text[i + 1 : i + 1 + LENGTHS[i % 8]]
        for i in range(count)
    ]


def make_params(count: int) -> list[SamplingParams]:
    return [
        SamplingParams(**KINDS[i % len(KINDS)], max_tokens=10, ignore_eos=True)  # type: ignore[arg-type]
        for i in range(count)
    ]


def generate(llm: LLM, which: list[int]) -> list[RequestOutput]:
    prompts, params = make_prompts(32), make_params(32)
    return llm.generate([prompts[i] for i in which], [params[i] for i in which], use_tqdm=False)


def told_of(output: RequestOutput) -> tuple[object, ...]:
    """Tokens and every log-probability, exactly."""
    choice = output.outputs[0]
    tables = [*(choice.logprobs or []), *(output.prompt_logprobs or [])]
    bits = [
        [(token, entry.logprob.hex(), entry.rank) for token, entry in (table or {}).items()]
        for table in tables
    ]
    return (choice.token_ids, bits)


def told(llm: LLM, which: list[int]) -> Told:
    return [told_of(output) for output in generate(llm, which)]


@pytest.fixture(scope="module")
def steady(tiny_folder: Path) -> Iterator[LLM]:
    with LLM(tiny_folder, **(SMALL | STEADY)) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(steady: LLM) -> Told:
    """Each of 32 requests by itself, the cache emptied before each."""
    found: Told = []
    for which in range(32):
        assert steady.reset_prefix_cache()
        found += told(steady, [which])
    return found


@pytest.mark.parametrize("size", [2, 7, 32])
def test_alone_equals_in_batches_of(steady: LLM, alone: Told, size: int) -> None:
    batched: Told = []
    for start in range(0, 32, size):
        assert steady.reset_prefix_cache()
        batched += told(steady, list(range(32))[start : start + size])
    assert batched == alone


def test_warm_cache_equals_cold(steady: LLM, alone: Told) -> None:
    told(steady, list(range(32)))
    hits = 0
    for which in range(32):
        (output,) = generate(steady, [which])
        hits += output.num_cached_tokens
        assert told_of(output) == alone[which]
    assert hits > 32 * 16, "trigger: too little was cached"


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 17, "max_num_seqs": 8},
        {"num_gpu_blocks_override": 20},
        {"block_size": 7, "enable_partial_prefix_caching": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_other_chunks_preemption_and_blocks_change_no_bit(
    make_llm: Callable[..., LLM], alone: Told, options: dict[str, object]
) -> None:
    other = make_llm(**(STEADY | options))
    assert told(other, list(range(32))) == alone
    if "num_gpu_blocks_override" in options:
        assert other.engine.stats().num_preemptions > 0, "trigger: nothing was preempted"


def test_a_step_is_one_program_and_nothing_compiles_later(steady: LLM) -> None:
    programs = steady.engine.executor.programs  # type: ignore[union-attr]
    told(steady, list(range(32)))
    steady.generate([[5, 6, 7]] * 3, SamplingParams(temperature=0.0), use_tqdm=False)

    kinds = [name for name, _ in programs.compile_seconds]
    assert sorted(kinds) == ["backbone", "copy", "draw", "score"]
    assert steady.engine.stats().num_compilations == 0


def test_scores_are_the_sampler_s_log_probabilities_to_the_bit(steady: LLM) -> None:
    outputs = generate(steady, list(range(8)))
    texts = [output.prompt_token_ids + list(output.outputs[0].token_ids) for output in outputs]
    found = score(steady, texts).logprobs
    for output, scores in zip(outputs, found, strict=True):
        choice = output.outputs[0]
        pairs = zip(choice.token_ids, choice.logprobs or [], strict=True)
        assert [table[token].logprob for token, table in pairs] == scores[-10:].tolist()


def test_biases_and_head_norms_are_covered_too(tmp_path: Path) -> None:
    for family, changes in (("qwen2", {"tie_word_embeddings": True}), ("qwen3", {})):
        folder = make_tiny_folder(tmp_path / family, family=family, **changes)
        with LLM(folder, **(SMALL | STEADY | {"dtype": "float32"})) as llm:
            alone = [told_of(generate(llm, [which])[0]) for which in range(8)]
            assert llm.reset_prefix_cache()
            assert told(llm, list(range(8))) == alone


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float16"}, "needs the CPU kernels"),
        ({"kv_cache_dtype": "int8"}, "reads no pool of int8: choose --kv-cache-dtype auto"),
        ({"enforce_eager": True}, "needs compiled steps: leave out --enforce-eager"),
        ({"logits_processor": lambda logits, rows: logits}, "cannot vouch for a logits_processor"),
    ],
)
def test_what_cannot_be_promised_is_refused(
    make_llm: Callable[..., LLM], options: dict[str, object], message: str
) -> None:
    with pytest.raises(OptionError, match=f"--batch-invariant {message}"):
        make_llm(**(STEADY | options))
