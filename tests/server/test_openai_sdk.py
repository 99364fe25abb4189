"""The openai SDK as a client."""

import openai
import pytest
from served_engine import Served, eventually

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def sdk(slow: Served):
    base_url = str(slow.http.base_url).rstrip("/") + "/v1"
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


def test_models(sdk):
    assert [model.id for model in sdk.models.list()] == ["fake", "alias"]
    assert sdk.models.retrieve("fake").id == "fake"


def test_completion_and_extra_body(sdk):
    extra = {"ignore_eos": True, "top_k": 1}
    answer = sdk.completions.create(model="fake", prompt="a<|end|>", max_tokens=3, extra_body=extra)
    assert answer.choices[0].text == "aa" and answer.usage.completion_tokens == 3


def test_chat_whole_and_streamed(sdk):
    ask = {"model": "fake", "messages": HI, "max_tokens": 6, "logprobs": True, "top_logprobs": 2}
    whole = sdk.chat.completions.create(**ask).choices[0]
    chunks = [c.choices[0] for c in sdk.chat.completions.create(**ask, stream=True)]
    assert "".join(chunk.delta.content for chunk in chunks) == whole.message.content == "user:H"
    entries = [entry for chunk in chunks if chunk.logprobs for entry in chunk.logprobs.content]
    assert entries == whole.logprobs.content and len(entries[0].top_logprobs) == 2
    assert chunks[-1].finish_reason == whole.finish_reason == "length"


def test_errors_have_their_types(sdk):
    with pytest.raises(openai.NotFoundError):
        sdk.chat.completions.create(model="nobody", messages=HI)
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model="fake", messages=HI, temperature=-3)
    assert caught.value.param == "temperature" and caught.value.body["message"]


def test_failure_within_a_stream_raises(slow: Served, sdk):
    slow.engine.fail_after = 2
    stream = sdk.completions.create(model="fake", prompt="ab", max_tokens=9, stream=True)
    with pytest.raises(openai.APIError, match="Boom"):
        list(stream)


def test_stream_closed_early_aborts(slow: Served, sdk):
    stream = sdk.chat.completions.create(model="fake", messages=HI, stream=True)
    next(iter(stream))
    stream.close()
    assert eventually(lambda: not slow.engine.running)
