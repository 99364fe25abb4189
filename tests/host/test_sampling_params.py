import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.sampling_params import SamplingParams

INT64 = 1 << 63


def test_the_defaults_are_legal_and_vllms():
    params = SamplingParams()

    assert (params.n, params.temperature, params.top_p, params.top_k) == (1, 1.0, 1.0, 0)
    assert (params.max_tokens, params.min_tokens, params.seed) == (16, 0, None)
    assert (params.stop_strings, params.stop_ids, params.logit_bias) == ((), (), {})
    assert not params.is_greedy and not params.has_penalties


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("n", 1, 128),
        ("presence_penalty", -2, 2),
        ("frequency_penalty", -2, 2),
        ("repetition_penalty", 1e-6, 1e6),
        ("temperature", 0, 2),
        ("top_p", 0, 1),
        ("top_k", 0, INT64),
        ("min_p", 0, 1),
        ("seed", -INT64, INT64 - 1),
        ("max_tokens", 1, INT64),
        ("logprobs", 0, INT64),
        ("prompt_logprobs", 0, INT64),
    ],
)
def test_a_number_is_legal_up_to_its_limits_and_not_beyond(name, low, high):
    step = 1 if isinstance(low, int) else 1e-7
    for legal in (low, high):
        assert getattr(SamplingParams(**{name: legal}), name) == legal
    for beyond in (low - 2 * step, high + 2 * step):
        with pytest.raises(InvalidRequest, match=rf"^{name} must be between") as caught:
            SamplingParams(**{name: beyond})
        assert caught.value.param == name


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", None, True, [1]])
def test_what_is_no_finite_number_is_refused(name, value):
    with pytest.raises(InvalidRequest, match=rf"^{name} must be a finite number"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("name", ["n", "top_k", "max_tokens", "min_tokens", "seed", "logprobs"])
@pytest.mark.parametrize("value", [1.0, "1", [1]])
def test_what_is_no_whole_number_is_refused(name, value):
    with pytest.raises(InvalidRequest, match=rf"^{name} must be a whole number"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("name", ["ignore_eos", "detokenize", "skip_special_tokens"])
def test_what_is_no_bool_is_refused(name):
    with pytest.raises(InvalidRequest, match=rf"^{name} must be true or false, not 1"):
        SamplingParams(**{name: 1})


@pytest.mark.parametrize(
    ("given_", "normal"),
    [
        ({"top_k": -1}, {"top_k": 0}),
        ({"seed": -1}, {"seed": None}),
        ({"logprobs": True}, {"logprobs": 1}),
        ({"prompt_logprobs": False}, {"prompt_logprobs": None}),
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"stop": ["x", "y", "x"]}, {"stop": ("x", "y")}),
        ({"stop_token_ids": [3, 1, 3]}, {"stop_token_ids": (3, 1)}),
        ({"stop": [], "stop_token_ids": None}, {"stop": (), "stop_token_ids": ()}),
    ],
)
def test_spellings_of_a_value_become_one(given_, normal):
    assert SamplingParams(**given_) == SamplingParams(**normal)
    assert all(getattr(SamplingParams(**given_), name) == normal[name] for name in normal)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": list("abcde")}, "stop takes at most 4 strings, not 5"),
        ({"stop": ""}, "stop must hold non-empty strings"),
        ({"stop": ["a", 1]}, "stop must hold non-empty strings, not 1"),
        ({"stop": ["x" * 1025]}, "at most 1024 characters, not 1025"),
        ({"stop": 5}, "stop must be a list of plain values, not 5"),
        ({"stop": "x", "detokenize": False}, "need detokenize=True"),
        ({"stop_token_ids": range(3)}, "stop_token_ids must be a list"),
        ({"stop_token_ids": [[1]]}, "stop_token_ids must be a list of plain values"),
        ({"stop_token_ids": [-1]}, "must hold token ids, not -1"),
        ({"stop_token_ids": [True]}, "must hold token ids, not True"),
        ({"stop_token_ids": list(range(1025))}, "at most 1024 ids, not 1025"),
        ({"logit_bias": [1]}, "logit_bias must map keys to values"),
        ({"logit_bias": {"1": 1.0}}, "logit_bias must map token ids, not '1'"),
        ({"logit_bias": {1: math.nan}}, "logit_bias of 1 must be a number, not nan"),
        ({"logit_bias": {1: True}}, "logit_bias of 1 must be a number, not True"),
        ({"logit_bias": dict.fromkeys(range(1025), 1)}, "at most 1024 ids, not 1025"),
        ({"max_tokens": 3, "min_tokens": 4}, r"min_tokens \(4\) must not exceed max_tokens \(3\)"),
    ],
)
def test_an_illegal_value_is_refused_by_name(options, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        SamplingParams(**options)

    assert caught.value.param in options


def test_no_answer_length_leaves_min_tokens_free():
    assert SamplingParams(max_tokens=None, min_tokens=1000).min_tokens == 1000


def test_a_large_input_is_not_echoed():
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(temperature="x" * 100_000)

    assert len(str(caught.value)) < 200


@given(
    name=st.sampled_from(["stop", "stop_token_ids", "logit_bias", "temperature", "n", "seed"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
        max_leaves=5,
    ),
)
def test_any_json_value_is_taken_or_refused_as_invalid(name, value):
    try:
        SamplingParams(**{name: value})
    except InvalidRequest as error:
        assert error.param == name


@pytest.mark.parametrize(
    ("options", "is_greedy"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 9e-6}, True),
        ({"temperature": 1e-5}, False),
        ({"top_p": 0}, True),
        ({"top_k": 1}, True),
        ({"top_k": 2}, False),
    ],
)
def test_greedy_is_recognised(options, is_greedy):
    assert SamplingParams(**options).is_greedy is is_greedy


@pytest.mark.parametrize(
    "options", [{"presence_penalty": 1}, {"frequency_penalty": -1}, {"repetition_penalty": 1.1}]
)
def test_penalties_are_recognised(options):
    assert SamplingParams(**options).has_penalties
