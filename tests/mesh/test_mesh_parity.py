"""A mesh changes where numbers are, not which tokens come out (float32, exact ids)."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import jax
import numpy as np
import pytest

from paged_jax import LLM, InvalidRequest, SamplingParams
from paged_jax.host.sampling_params import BeamSearchParams, beam_sampling
from paged_jax.host.structured_outputs import StructuredOutputsParams

PROMPTS = [[3 + (7 * i + j) % 250 for j in range(5 + 9 * i)] for i in range(6)]
SHAPES = [
    *(("llama", n) for n in (2, 4, 8)),
    *(("qwen3", n) for n in (2, 4, 8)),
    ("qwen2", 4),  # 2 key/value heads, each on two devices
    ("tied", 3),  # 9 and 3 heads; 320 ids do not divide by 3
    ("llama", (1, 2, 1)),
    ("llama", (2, 1, 1)),
    ("llama", (1, 2, 2)),
    ("tied", (2, 2, 1)),  # 2 + 1 layers; the last stage has a head of its own
]


def ids_of(llm: LLM, prompts: list[list[int]], params) -> list[list[list[int]]]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [[list(choice.token_ids) for choice in output.outputs] for output in outputs]


@pytest.mark.parametrize(("name", "mesh"), SHAPES)
def test_greedy_tokens_are_those_of_one_device_also_preempted_and_cached(
    engine_on, name, mesh
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    crowded = engine_on(name, mesh)
    before = crowded.engine.stats()

    ids = ids_of(crowded, PROMPTS, params)
    again = ids_of(crowded, PROMPTS[-1:], replace(params, max_tokens=4))

    after = crowded.engine.stats()
    assert after.num_preemptions > before.num_preemptions
    assert after.prefix_hits > before.prefix_hits
    assert ids == ids_of(engine_on(name), PROMPTS, params)
    assert again == [[ids[-1][0][:4]]]
    assert len({tuple(choices[0]) for choices in ids}) == len(PROMPTS)


@pytest.mark.parametrize(
    ("name", "mesh"), [("llama", 2), ("qwen2", 4), ("tied", 3), ("tied", (2, 2, 1))]
)
def test_drawn_tokens_are_those_of_one_device(engine_on, name, mesh) -> None:
    params = [
        SamplingParams(temperature=0.9, seed=1, max_tokens=8, n=3),
        SamplingParams(temperature=1.1, top_p=0.8, seed=2, max_tokens=8),
        SamplingParams(temperature=0.7, top_k=20, seed=3, max_tokens=8, min_tokens=4),
        SamplingParams(temperature=0.0, presence_penalty=1.5, max_tokens=8),
        SamplingParams(temperature=0.0, logit_bias={7: 100.0}, max_tokens=3),
        SamplingParams(temperature=1.0, min_p=0.1, repetition_penalty=1.3, seed=4, max_tokens=8),
    ]

    ids = ids_of(engine_on(name, mesh), PROMPTS, params)

    assert ids == ids_of(engine_on(name), PROMPTS, params)


@pytest.mark.parametrize("mesh", [3, (2, 2, 1)])
def test_logprobs_are_those_of_one_device(engine_on, mesh) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=3, prompt_logprobs=2)
    runs = [
        engine_on("tied", each).generate(PROMPTS[:3], params, use_tqdm=False) for each in (mesh, 1)
    ]

    for one, other in zip(*runs, strict=True):
        for mine, theirs in zip(
            (*one.prompt_logprobs[1:], *one.outputs[0].logprobs),
            (*other.prompt_logprobs[1:], *other.outputs[0].logprobs),
            strict=True,
        ):
            assert mine.keys() == theirs.keys()
            expected = pytest.approx([entry.logprob for entry in theirs.values()], abs=1e-4)
            assert [entry.logprob for entry in mine.values()] == expected


@pytest.mark.parametrize("mesh", [2, (1, 2, 2)])
def test_a_quantised_model_draws_the_tokens_of_one_device(engine_on, mesh) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    divided, alone = (
        ids_of(engine_on("llama", each, quantization="int8"), PROMPTS, params) for each in (mesh, 1)
    )
    assert divided == alone


@pytest.mark.parametrize("mesh", [4, (1, 2, 2), (2, 1, 1)])
def test_answers_of_a_form_are_those_of_one_device(engine_on, mesh) -> None:
    form = StructuredOutputsParams(regex="[a-f]{3,6}")
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=8, structured_outputs=form)

    ids = ids_of(engine_on("llama", mesh), PROMPTS[:3], params)

    assert ids == ids_of(engine_on("llama"), PROMPTS[:3], params)


def test_choices_of_one_prompt_share_its_blocks(engine_on) -> None:
    params = SamplingParams(temperature=1.0, seed=5, n=4, max_tokens=8, ignore_eos=True)
    llm = engine_on("qwen2", 4)
    before = llm.engine.stats().num_copies

    ids = ids_of(llm, PROMPTS[2:3], params)

    assert llm.engine.stats().num_copies == before + 3
    assert ids == ids_of(engine_on("qwen2"), PROMPTS[2:3], params)


@pytest.mark.parametrize(("name", "mesh"), [("llama", 4), ("tied", (2, 2, 1))])
def test_nothing_is_compiled_after_the_start(engine_on, name, mesh) -> None:
    llm = engine_on(name, mesh)
    params = [SamplingParams(temperature=t, seed=1, max_tokens=5, logprobs=1) for t in (0.0, 1.0)]

    llm.generate(PROMPTS[:2], params, use_tqdm=False)

    assert llm.engine.stats().num_compilations == 0


def test_a_pipeline_is_filled_before_it_is_read(engine_on, monkeypatch) -> None:
    engine = engine_on("llama", (1, 2, 2)).engine
    calls, drawn_for = [], []
    for name in ("_start", "_read"):
        spy = partial(note_call, calls, drawn_for, name, getattr(engine, name))
        monkeypatch.setattr(engine, name, spy)
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    for index, prompt in enumerate(PROMPTS[:2]):
        engine.add(prompt[:5], params, request_id=str(index))

    while engine.has_work:
        engine.step()

    assert calls[:6] == ["_start", "_start", "_read", "_start", "_read", "_start"]
    assert all(len(ids) == 1 for ids in drawn_for)  # half of the sequences
    assert all(one != other for one, other in pairwise(drawn_for))


def note_call(calls, drawn_for, name, function, *arguments):
    """Note a call, and whom a launched step draws for."""
    calls.append(name)
    result = function(*arguments)
    if name == "_start" and result is not None:
        drawn_for.append({c.sequence.request.id for c in result.work.chunks if c.num_samples})
    return result


def test_a_pipeline_refuses_beams_when_they_are_added(engine_on) -> None:
    engine = engine_on("llama", (1, 2, 2)).engine
    params = beam_sampling(BeamSearchParams(beam_width=2, max_tokens=4))

    with pytest.raises(InvalidRequest, match="--pipeline-parallel-size 1"):
        engine.add(PROMPTS[0], params, request_id="beams")
    assert engine.num_live == 0


def test_a_replica_has_its_arrays_on_its_own_devices(engine_on) -> None:
    engines = engine_on("tied", (2, 2, 1)).engine.engines
    on = [
        [
            {device.id for leaf in jax.tree.leaves(part) for device in leaf.devices()}
            for part in (each.params.layers[:2], each.params.layers[2:], each.executor.pool.k[2:])
        ]
        for each in engines
    ]

    assert on == [[{0}, {1}, {1}], [{2}, {3}, {3}]]
    assert jax.tree.all(jax.tree.map(np.array_equal, *(each.params for each in engines)))
