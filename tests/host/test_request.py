from hypothesis import given
from hypothesis import strategies as st

from paged_jax.host.request import Chunk, FinishReason, Request, ScheduledStep, Sequence
from paged_jax.host.sampling_params import SamplingParams


def make_sequence(prompt: tuple[int, ...] = (1, 2, 3), n: int = 1, seed: int = 5) -> Sequence:
    request = Request(id="a", prompt=prompt, sampling=SamplingParams(n=n), seed=seed, max_tokens=16)
    return Sequence(request, fork_pending=n > 1)


@given(data=st.data(), prompt=st.lists(st.integers(), min_size=1), output=st.lists(st.integers()))
def test_a_sequence_is_its_prompt_followed_by_its_output(data, prompt, output):
    sequence = make_sequence(tuple(prompt))
    sequence.output += output
    start = data.draw(st.integers(0, sequence.num_tokens))
    stop = data.draw(st.integers(start, sequence.num_tokens))

    assert sequence.tokens(start, stop) == tuple((prompt + output)[start:stop])
    assert sequence.num_tokens == len(prompt) + len(output)


def test_a_request_not_yet_forked_draws_all_its_choices():
    sequence = make_sequence(n=4)
    assert sequence.num_samples == 4

    sequence.fork_pending = False

    assert sequence.num_samples == 1


def test_each_choice_has_its_own_seed():
    sequence = make_sequence(seed=5)
    sequence.index = 3

    assert sequence.seed == 8


def test_a_step_sums_its_chunks():
    chunks = (Chunk(make_sequence(), 0, 3, 1), Chunk(make_sequence(n=2), 4, 5, 2))

    assert (ScheduledStep(chunks).num_tokens, ScheduledStep(chunks).num_samples) == (8, 3)


def test_finish_reasons_are_the_words_of_the_protocol():
    assert [reason.value for reason in FinishReason] == ["stop", "length", "abort", "error"]
