"""LLM(score_mod=..., mask_mod=..., bidirectional=...): the engine's answers equal the oracle's with
the same attention, in chunks, from the cache and in the answer.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from oracle import greedy, oracle_layers, oracle_logits

from paged_jax import LLM, InvalidRequest, SamplingParams, SnapshotError, Taps
from paged_jax.attention_functions import alibi, window_with_sinks
from paged_jax.config import AttentionMods, OptionError
from paged_jax.device.attention_mods import check_mods
from paged_jax.engine_args import EngineArgs
from paged_jax.models.params import ModelParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
SIZES: dict[str, object] = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_batched_tokens": 16,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 20,
}


@pytest.fixture(scope="module")
def llm(tiny_folder: Path) -> Iterator[LLM]:
    """Slopes, a window of 9 and 2 sinks; chunks of 16."""
    own = {"score_mod": alibi(4), "mask_mod": window_with_sinks(9, 2)}
    with LLM(tiny_folder, enable_taps=True, **own, **SIZES) as engine:
        yield engine


@pytest.fixture(scope="module")
def prefix_lm(tiny_folder: Path) -> Iterator[LLM]:
    """The first 12 tokens see each other."""
    own = {"bidirectional": 12, "enable_prefix_caching": False, "num_gpu_blocks_override": 14}
    with LLM(tiny_folder, **(SIZES | own)) as engine:
        yield engine


def bend(scores: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    heads, length, _ = scores.shape
    slopes = 2.0 ** (-8 * np.arange(1, heads + 1) / heads)
    back = np.arange(length)[:, None] - np.arange(length)
    near = (back < 9) | (np.arange(length) < 2)
    return scores - slopes[:, None, None] * back, seen & near


def see_the_prefix(scores: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    seen = seen.copy()
    seen[:12, :12] = True
    return scores, seen


def make_prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, 260, length).tolist()


def test_ids_equal_the_oracle_cold_and_cached(llm: LLM, plain_params: ModelParams) -> None:
    prompt, config = make_prompt(37), llm.engine.config.model
    wanted = greedy(config, plain_params, prompt, 9, bend=bend)
    assert wanted != greedy(config, plain_params, prompt, 9), "trigger: no effect"
    cold, warm = (llm.generate([prompt], GREEDY, use_tqdm=False)[0] for _ in range(2))
    assert cold.outputs[0].token_ids == warm.outputs[0].token_ids == wanted
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 32)
    assert llm.engine.stats().num_compilations == 0


def test_taps_read_the_weights_that_were_used(llm: LLM, plain_params: ModelParams) -> None:
    params = replace(GREEDY, taps=Taps(attention=(0, 1), residual=(2,)))
    output = llm.generate([make_prompt(37)], params, use_tqdm=False)[0]
    ids = output.prompt_token_ids + output.outputs[0].token_ids[:-1]
    streams, weights = oracle_layers(llm.engine.config.model, plain_params, ids, bend=bend)
    for layer, found in output.captures.attention.items():
        np.testing.assert_allclose(found, weights[layer].swapaxes(0, 1), rtol=0, atol=1e-4)
    np.testing.assert_allclose(output.captures.residual[2], streams[2], rtol=0, atol=1e-4)


def test_a_prefix_that_sees_itself_equals_the_oracle_also_when_steps_are_full_or_preempted(
    prefix_lm: LLM, plain_params: ModelParams
) -> None:
    prompts = [make_prompt(length, seed=length) for length in (37, 12, 30, 40, 41, 42)]
    params = replace(GREEDY, max_tokens=40)
    outputs = prefix_lm.generate(prompts, params, use_tqdm=False)
    config = prefix_lm.engine.config.model
    for prompt, output in zip(prompts, outputs, strict=True):
        drawn = output.outputs[0].token_ids
        table = oracle_logits(config, plain_params, [*prompt, *drawn[:-1]], bend=see_the_prefix)
        likeliest = table[len(prompt) - 1 :, : config.vocab_limit].argmax(-1)
        assert drawn == likeliest.tolist()
    assert sum(output.metrics.num_preemptions for output in outputs), "trigger: no preemption"


def test_prompts_shorter_than_the_prefix_forks_and_snapshots_are_refused(
    prefix_lm: LLM, tmp_path: Path
) -> None:
    engine = prefix_lm.engine
    with pytest.raises(InvalidRequest, match="the prompt has 11 tokens, but at least the first 12"):
        prefix_lm.generate([make_prompt(11)], GREEDY, use_tqdm=False)
    engine.add(make_prompt(20), GREEDY, request_id="parent")
    engine.step()
    try:
        with pytest.raises(InvalidRequest, match="bidirectional ones may not be"):
            engine.fork("parent", new_id="child")
        with pytest.raises(SnapshotError, match="functions of yours"):
            engine.snapshot(tmp_path / "state")
    finally:
        engine.abort("parent")


ON = EngineArgs()
OFF = EngineArgs(enable_prefix_caching=False)
WRONG = {
    "cannot be traced": (AttentionMods(mask_mod=lambda q, k, h: q > 0 and k > 0), ON),
    "mask_mod must return a boolean": (AttentionMods(mask_mod=lambda q, k, h: q - k), ON),
    "score_mod must return a float": (AttentionMods(score_mod=lambda s, q, k, h: q), ON),
    "for each score, not": (AttentionMods(score_mod=lambda s, q, k, h: jnp.sum(s)), ON),
    "one device, not on 2": (AttentionMods(bidirectional=4), EngineArgs(tensor_parallel_size=2)),
    "--no-enable-prefix-caching": (AttentionMods(bidirectional=4), ON),
    "between 1 and --max-num-batched-tokens": (AttentionMods(bidirectional=513), OFF),
}


@pytest.mark.parametrize(("message", "case"), WRONG.items(), ids=WRONG)
def test_functions_that_cannot_be_are_refused(llm: LLM, message: str, case: tuple) -> None:
    with pytest.raises(OptionError, match=message):
        check_mods(*case, llm.engine.config.model)


def test_no_function_is_the_model_s_own_attention(llm: LLM) -> None:
    assert check_mods(AttentionMods(), ON, llm.engine.config.model) is None
