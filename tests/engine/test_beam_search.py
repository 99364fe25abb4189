"""Beam search through the whole engine, against the same search on whole sequences in float64."""

import functools

import numpy as np
import pytest
from beam_oracle import search
from tiny import make_tiny_folder, oracle_logits, tiny_words

from paged_jax import LLM, BeamSearchParams, InvalidRequest, SamplingParams
from paged_jax.host.limits import check_beams_fit
from paged_jax.host.sampling_params import beam_sampling
from paged_jax.host.trace import StepRecord

ENDS = (59, 87, 22)  # ids that occur often enough in what the random model says
PROMPTS = [[5, 6, 7, 8, 9], [260, 78, 78, 81], [40 + index for index in range(21)]]


@pytest.fixture(scope="module")
def ending_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ending") / "llama"
    return make_tiny_folder(folder, max_position_embeddings=2048, eos_token_id=list(ENDS))


@pytest.fixture(scope="module")
def ending_llm(ending_folder):
    options = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 32, "block_size": 4}
    with LLM(ending_folder, max_num_batched_tokens=64, num_gpu_blocks_override=200,
             **options) as llm:  # fmt: skip
        yield llm


def oracle_search(llm: LLM, params, prompt: list[int], search_params: BeamSearchParams):
    @functools.cache
    def logprobs_of(answer: tuple[int, ...]) -> np.ndarray:
        row = oracle_logits(llm.engine.config.model, params, [*prompt, *answer])[-1]
        known = np.arange(len(row)) < len(tiny_words())
        return np.where(known, row - np.logaddexp.reduce(row), -np.inf)

    return search(
        logprobs_of,
        width=search_params.beam_width,
        max_tokens=search_params.max_tokens or 0,
        ends=() if search_params.ignore_eos else ENDS,
        penalty=search_params.length_penalty,
    )


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.5])
@pytest.mark.parametrize("width", [1, 4])
def test_answers_and_scores_are_the_oracles(ending_llm, plain_params, width, penalty) -> None:
    params = BeamSearchParams(beam_width=width, max_tokens=9, length_penalty=penalty)
    for prompt, output in zip(PROMPTS, ending_llm.beam_search(PROMPTS, params), strict=True):
        expected = oracle_search(ending_llm, plain_params, prompt, params)
        found = [tuple(beam.tokens[len(prompt) :]) for beam in output.sequences]
        assert found == [answer for _, answer in expected]
        for beam, (score, answer) in zip(output.sequences, expected, strict=True):
            assert beam.cum_logprob / len(answer) ** penalty == pytest.approx(score, abs=1e-3)
            assert beam.finish_reason == ("stop" if answer[-1] in ENDS else "length")


def run(llm: LLM, load: list[tuple[list[int], SamplingParams]]) -> dict[str, list[list[int]]]:
    """The ids of every choice of requests that run together."""
    told: dict[str, list[list[int]]] = {}
    for index, (prompt, params) in enumerate(load):
        llm.engine.add(prompt, params, request_id=str(index))
        told[str(index)] = [[] for _ in range(params.n)]
    while llm.engine.has_work:
        for delta in llm.engine.step():
            for choice in delta.choices:
                told[delta.request_id][choice.index] += choice.token_ids
        llm.engine.scheduler.check()
    assert llm.engine.stats().usage.num_used == 0
    return told


def mixed_load(num_prompts: int) -> list[tuple[list[int], SamplingParams]]:
    beams = beam_sampling(BeamSearchParams(beam_width=3, max_tokens=12))
    plain = SamplingParams(max_tokens=20, seed=5, ignore_eos=True)
    prompts = [[5 + index, *range(30, 41)] for index in range(num_prompts)]
    return [(prompt, params) for prompt in prompts for params in (beams, plain)]


@pytest.mark.parametrize("is_caching", [True, False])
def test_beams_and_others_do_not_disturb_each_other_when_blocks_run_out(
    ending_folder, ending_llm, is_caching
) -> None:
    load = mixed_load(4)
    alone = {key: run(ending_llm, [item])["0"] for key, item in zip("01234567", load, strict=True)}
    with LLM(ending_folder, dtype="float32", max_model_len=64, max_num_seqs=8, block_size=4,
             max_num_batched_tokens=64, num_gpu_blocks_override=19, enforce_eager=False,
             enable_prefix_caching=is_caching) as tight:  # fmt: skip
        assert run(tight, load) == alone
        assert tight.engine.stats().num_preemptions, "trigger: nobody was preempted"


class Peak:
    """The most blocks that were in use after a step."""

    def __init__(self) -> None:
        self.num_used = 0

    def on_step(self, record: StepRecord) -> None:
        self.num_used = max(self.num_used, record.usage.num_used)

    def on_finish(self, record: object) -> None:
        pass


def test_beams_hold_fewer_blocks_than_separate_sequences(ending_llm) -> None:
    engine, peak = ending_llm.engine, Peak()
    engine.add_observer(peak)
    prompt, width = list(range(30, 62)), 4
    ending_llm.beam_search([prompt], BeamSearchParams(beam_width=width, max_tokens=24))
    separate = width * -(-(len(prompt) + 23) // 4)
    assert 0 < peak.num_used < separate - (width - 1) * len(prompt) // 4


def test_log_probabilities_of_beams_add_up(ending_llm) -> None:
    params = beam_sampling(BeamSearchParams(beam_width=2, max_tokens=5, ignore_eos=True))
    (output,) = ending_llm.generate([PROMPTS[0]], params, use_tqdm=False)
    for choice in output.outputs:
        total = sum(t[id].logprob for id, t in zip(choice.token_ids, choice.logprobs, strict=True))
        assert len(choice.token_ids) == 5 and choice.cumulative_logprob == pytest.approx(total)


@pytest.mark.parametrize("skips", [True, False])
def test_the_texts_of_beams_are_those_of_any_answer(ending_llm, skips) -> None:
    decode, shown = ending_llm.get_tokenizer().decode, set()
    params = BeamSearchParams(beam_width=4, max_tokens=24, skip_special_tokens=skips)
    for prompt, output in zip(PROMPTS, ending_llm.beam_search(PROMPTS, params), strict=True):
        for beam in output.sequences:
            answer = beam.tokens[len(prompt) :]
            told = answer[:-1] if beam.finish_reason == "stop" else answer
            text = decode(told, skip_special_tokens=skips)
            assert beam.text == decode(prompt) + text
            shown |= set(told) & {0, 1, 2}
    assert shown, "trigger: no beam has a special token"


def test_aborted_beams_give_their_blocks_back(ending_llm) -> None:
    engine = ending_llm.engine
    engine.add(PROMPTS[0], beam_sampling(BeamSearchParams(beam_width=4)), request_id="a")
    for _ in range(4):
        engine.step()
    assert engine.abort("a").finished
    assert not engine.has_work and engine.stats().usage.num_used == 0


def test_beams_that_can_never_be_served_are_refused(ending_llm) -> None:
    with pytest.raises(InvalidRequest, match="--max-logprobs 24"):
        ending_llm.beam_search(PROMPTS[0], BeamSearchParams(beam_width=6))
    with pytest.raises(InvalidRequest, match="208 KV blocks"):
        config = ending_llm.engine.config
        check_beams_fit(13, 20, max_tokens=None, config=config.scheduler, cache=config.cache)
    assert not ending_llm.engine.has_work


@pytest.mark.parametrize(
    "fields", [{"beam_width": 0}, {"beam_width": 129}, {"beam_width": 2, "length_penalty": 11}]
)
def test_wrong_parameters_are_refused(fields) -> None:
    with pytest.raises(InvalidRequest, match="must be between"):
        BeamSearchParams(**fields)
