"""Taps: what is read equals the float64 oracle however it was computed, and edits change their own
request alone.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from oracle import greedy, oracle_layers

from paged_jax import (
    LLM,
    AddVector,
    InvalidRequest,
    SamplingParams,
    SetVector,
    SnapshotError,
    Taps,
    ZeroHead,
)
from paged_jax.config import OptionError
from paged_jax.engine.admission import check_request
from paged_jax.engine.resolved import mesh_shape
from paged_jax.engine_args import EngineArgs
from paged_jax.host.taps import MAX_TAPPED
from paged_jax.models.params import ModelParams
from paged_jax.outputs import Captures, RequestOutput

ATOL = 1e-4  # float32 against float64; the stream's numbers are of size 10
ALL = Taps(residual=(0, 1, 2), attention=(0, 1))
GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
SIZES: dict[str, object] = {"max_num_batched_tokens": 16, "max_num_seqs": 8}


@pytest.fixture(scope="module")
def llm(tiny_folder: Path) -> Iterator[LLM]:
    """An engine with taps that cuts prompts into chunks of 16, and has room for 304 tokens."""
    options = {"dtype": "float32", "max_model_len": 256, "num_gpu_blocks_override": 20}
    with LLM(tiny_folder, enable_taps=True, **(SIZES | options)) as engine:
        yield engine


def make_prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, 260, length).tolist()


def make_vector(seed: int, size: float = 1.0) -> tuple[float, ...]:
    return tuple(np.random.default_rng(seed).normal(0, size, 64).tolist())


def run(llm: LLM, prompt: list[int], taps: Taps | None = None, **changes: object) -> RequestOutput:
    params = replace(GREEDY, taps=taps, **changes)  # type: ignore[arg-type]
    return llm.generate([prompt], params, use_tqdm=False)[0]


def ids_of(output: RequestOutput) -> list[int]:
    return output.prompt_token_ids + output.outputs[0].token_ids


def check(llm: LLM, params: ModelParams, output: RequestOutput, edits: tuple = ()) -> Captures:
    """Compare all that was read with the oracle on the same ids."""
    captures, config = output.captures, llm.engine.config.model
    assert captures is not None
    streams, weights = oracle_layers(config, params, ids_of(output)[:-1], edits=edits)
    rows, width = list(captures.positions), captures.positions[-1] + 1
    for layer, found in captures.residual.items():
        np.testing.assert_allclose(found, streams[layer][rows], rtol=0, atol=ATOL)
    for layer, found in captures.attention.items():
        wanted = weights[layer].swapaxes(0, 1)[rows, :, :width]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=ATOL)
    return captures


@pytest.mark.parametrize("length", [12, 37])
def test_all_layers_equal_the_oracle_in_whole_and_cut_prompts_and_in_the_answer(
    llm: LLM, plain_params: ModelParams, length: int
) -> None:
    output = run(llm, make_prompt(length), ALL)
    captures = check(llm, plain_params, output)
    assert captures.positions == tuple(range(length + 8))
    assert list(captures.residual) == [0, 1, 2] and list(captures.attention) == [0, 1]
    assert captures.attention[0].shape == (length + 8, 4, length + 8)


def test_only_chosen_positions_are_read(llm: LLM, plain_params: ModelParams) -> None:
    taps = Taps(residual=(1,), attention=(1,), positions=(-1, 3, 40, 70))
    output = run(llm, make_prompt(37), taps, max_tokens=40)
    assert check(llm, plain_params, output).positions == (3, 36, 40, 70)
    short = run(llm, make_prompt(37), replace(taps, positions=(-37, 38)), max_tokens=2)
    assert short.captures.positions == (0,), "a last token is not computed"


def test_a_cached_prompt_is_computed_again_and_nothing_is_published(
    llm: LLM, plain_params: ModelParams
) -> None:
    prompt = make_prompt(37, seed=2)
    run(llm, prompt, ALL)
    first, second = run(llm, prompt), run(llm, prompt)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)
    tapped = run(llm, prompt, ALL)
    assert tapped.num_cached_tokens == 0
    check(llm, plain_params, tapped)


def test_after_a_preemption_all_is_read_once(llm: LLM, plain_params: ModelParams) -> None:
    prompts = [make_prompt(40, seed=index) for index in range(6)]
    edits = (AddVector(1, make_vector(1), start=30),)
    params = [replace(GREEDY, max_tokens=24) for _ in prompts]
    params[-1] = replace(params[-1], taps=replace(ALL, edits=edits))
    output = llm.generate(prompts, params, use_tqdm=False)[-1]
    assert output.metrics.num_preemptions > 0, "trigger: it was not preempted"
    assert check(llm, plain_params, output, edits).positions == tuple(range(63))


EDITS = {
    "a vector from the prompt's end on": (AddVector(1, make_vector(2), start=36),),
    "a vector at some positions, behind the last layer too": (
        AddVector(0, make_vector(3), start=2, stop=20),
        AddVector(2, make_vector(4, 5.0), start=38),
    ),
    "a position of the stream replaced": (SetVector(1, make_vector(5, 3.0), 36),),
    "replaced, then added to": (
        SetVector(1, make_vector(6), 10),
        AddVector(1, make_vector(7)),
    ),
    "heads without output": (ZeroHead(0, 3), ZeroHead(1, 0, start=36)),
    "everything": (
        ZeroHead(1, 2),
        AddVector(2, make_vector(8)),
        SetVector(0, make_vector(9), 5),
        ZeroHead(0, 1, start=3, stop=30),
        AddVector(0, make_vector(10), start=1),
    ),
}


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
def test_edits_equal_the_oracle(llm: LLM, plain_params: ModelParams, edits: tuple) -> None:
    prompt = make_prompt(37)
    output = run(llm, prompt, replace(ALL, edits=edits), max_tokens=4)
    check(llm, plain_params, output, edits)
    wanted = greedy(llm.engine.config.model, plain_params, prompt, 4, edits=edits)
    assert output.outputs[0].token_ids == wanted
    plain = run(llm, prompt, max_tokens=4).outputs[0].token_ids
    assert plain != wanted, "trigger: no effect"


def test_positions_may_count_from_the_prompt_s_end(llm: LLM) -> None:
    near, far = (AddVector(1, make_vector(2), start=start) for start in (-1, 36))
    one, other = (run(llm, make_prompt(37), Taps(edits=(edit,))) for edit in (near, far))
    assert ids_of(one) == ids_of(other) and one.captures is None


def test_a_stream_patched_with_another_run_s_draws_what_that_run_drew(llm: LLM) -> None:
    clean, other = make_prompt(20), make_prompt(20, seed=3)
    read = run(llm, clean, Taps(residual=(2,), positions=(-1,)))
    patch = SetVector(2, read.captures.vector(2, 19), -1)
    patched, plain = run(llm, other, Taps(edits=(patch,))), run(llm, other)
    assert patched.outputs[0].token_ids[0] == read.outputs[0].token_ids[0]
    assert plain.outputs[0].token_ids[0] != read.outputs[0].token_ids[0]


def test_others_in_the_same_steps_keep_their_ids_and_logprobs(llm: LLM) -> None:
    prompts = [make_prompt(length, seed=length) for length in (5, 17, 30)]
    params = [replace(GREEDY, logprobs=1), replace(GREEDY, temperature=1.0, seed=3), GREEDY]
    alone = llm.generate(prompts, params, use_tqdm=False)
    assert llm.reset_prefix_cache()
    taps = replace(ALL, edits=EDITS["everything"])
    tapped = replace(GREEDY, taps=taps)
    beside = llm.generate([make_prompt(37), *prompts], [tapped, *params], use_tqdm=False)
    assert [ids_of(each) for each in beside[1:]] == [ids_of(each) for each in alone]
    assert beside[1].outputs[0].cumulative_logprob == pytest.approx(
        alone[0].outputs[0].cumulative_logprob, abs=1e-5
    )
    assert all(each.captures is None for each in beside[1:])


def test_more_requests_with_taps_than_have_seats_wait_and_others_pass(llm: LLM) -> None:
    edits = [(AddVector(1, make_vector(seed, 3.0)),) for seed in range(MAX_TAPPED + 3)]
    params = [replace(GREEDY, taps=Taps(edits=edit)) for edit in edits]
    prompt = make_prompt(12)
    alone = [ids_of(llm.generate([prompt], each, use_tqdm=False)[0]) for each in params]
    together = llm.generate([prompt] * 8, [*params, GREEDY], use_tqdm=False)
    assert [ids_of(each) for each in together[:-1]] == alone
    first_s = [each.metrics.first_token_time for each in together]
    assert first_s[-1] < first_s[MAX_TAPPED], "who has no taps waited for those who have"


def test_switching_taps_compiles_nothing_and_only_tapped_steps_run_the_tapped_program(
    llm: LLM, monkeypatch
) -> None:
    called, call = list[str](), llm.engine.executor.programs.call
    spy = lambda name, *rest: called.append(name) or call(name, *rest)  # noqa: E731
    monkeypatch.setattr(llm.engine.executor.programs, "call", spy)
    for taps in (None, ALL, Taps(edits=EDITS["everything"]), None, replace(ALL, attention=())):
        called.clear()
        run(llm, make_prompt(30), taps)
        assert ("tapped backbone" in called) == (taps is not None)
        assert ("backbone" in called) == (taps is None)
    assert llm.engine.stats().num_compilations == 0


WRONG = {
    "a layer too many": (Taps(residual=(3,)), "residual must be between 0 and 2 here, not 3"),
    "weights behind the last layer": (Taps(attention=(2,)), "attention must be between 0 and 1"),
    "a position before the prompt": (Taps(positions=(-13,)), "positions must be between -12"),
    "a vector of another model": (Taps(edits=(AddVector(0, (1.0,) * 5),)), "have 64 numbers"),
    "a head too many": (Taps(edits=(ZeroHead(0, 4),)), "head must be between 0 and 3 here"),
    "a layer of a head": (Taps(edits=(ZeroHead(2, 0),)), "layer must be between 0 and 1 here"),
}


@pytest.mark.parametrize(("taps", "message"), WRONG.values(), ids=WRONG)
def test_what_the_model_does_not_have_is_refused(llm: LLM, taps: Taps, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        run(llm, make_prompt(12), taps)
    assert refused.value.param == "taps"


def test_taps_need_the_flag(llm: LLM) -> None:
    config = replace(llm.engine.config, has_taps=False)
    with pytest.raises(InvalidRequest, match="started with --enable-taps"):
        check_request(make_prompt(3), replace(GREEDY, taps=ALL), config)


def test_more_numbers_than_may_be_captured_are_refused(llm: LLM) -> None:
    config = llm.engine.config
    config = replace(config, model=replace(config.model, embed_dim=1 << 17))
    with pytest.raises(InvalidRequest, match="would capture 25165824 numbers"):
        check_request(make_prompt(55), replace(GREEDY, taps=replace(ALL, attention=())), config)


def test_forks_and_snapshots_of_tapped_requests_are_refused(llm: LLM, tmp_path: Path) -> None:
    engine = llm.engine
    engine.add(make_prompt(12), replace(GREEDY, taps=ALL), request_id="tapped")
    engine.step()
    engine.step()  # delivers what the first one read
    try:
        with pytest.raises(InvalidRequest, match="a fork shares blocks"):
            engine.fork("tapped", new_id="child", params=GREEDY)
        with pytest.raises(SnapshotError, match="'tapped' has taps"):
            engine.snapshot(tmp_path / "state")
    finally:
        last = engine.abort("tapped")
    assert last.captures.positions == tuple(range(12)), "what was read is told"


@pytest.mark.parametrize("other", [{"tensor_parallel_size": 2}, {"record": "run.jsonl"}])
def test_what_taps_do_not_go_with_is_named(other: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="--enable-taps"):
        mesh_shape(EngineArgs(enable_taps=True, **other))  # type: ignore[arg-type]
