"""/v1/embeddings: forms of the input, spellings of the vectors, what is refused, the openai SDK."""

import base64
import struct

import openai
import pytest

from paged_jax import PoolingParams


def embed(served, text, **body):
    response = served.post("/v1/embeddings", input=text, **body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("text", ["ab", ["ab"], [97, 98], [[97, 98]]], ids=str)
def test_every_form_of_a_text_gives_the_same(served, text):
    answer = embed(served, text)
    assert answer["object"] == "list" and answer["model"] == "fake"
    assert answer["data"] == [
        {"object": "embedding", "index": 0, "embedding": [97.0, 98.0] * 4},
    ]
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == 2
    assert answer["usage"]["completion_tokens"] == 0


def test_several_texts_come_back_in_order(served):
    data = embed(served, ["a", "b", "c"])["data"]
    assert [(item["index"], item["embedding"][0]) for item in data] == [
        (0, 97.0),
        (1, 98.0),
        (2, 99.0),
    ]


def test_base64_holds_the_same_numbers(served):
    spelled = embed(served, "ab", encoding_format="base64")["data"][0]["embedding"]
    assert struct.unpack("<8f", base64.b64decode(spelled)) == (97.0, 98.0) * 4


def test_pooling_reaches_the_engine(served):
    embed(served, "ab", pooling="mean", normalize=False, priority=3, cache_salt="s")
    params, priority, salt = served.engine.asked[-1]
    assert params.pooling == PoolingParams(pooling="mean", normalize=False)
    assert params.max_tokens == 1 and (priority, salt) == (3, "s")


def test_a_text_is_cut_if_that_is_asked_for(served):
    answer = embed(served, "abcd", truncate_prompt_tokens=2, truncation_side="right")
    assert answer["data"][0]["embedding"][:2] == [97.0, 98.0]
    assert answer["usage"]["prompt_tokens"] == 2


def test_the_model_s_own_size_may_be_asked_for(served):
    assert len(embed(served, "ab", dimensions=8)["data"][0]["embedding"]) == 8
    error = served.refused("/v1/embeddings", input="ab", dimensions=4)
    assert error["param"] == "dimensions" and "must be 8" in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"input": ""}, {"input": []}, {"input": [[]]}, {"input": [""]}, {"input": [1, "a"]},
        {"input": [-1]}, {"input": [900]}, {"input": [True]}, {"input": None}, {},
        {"input": "x" * 600}, {"input": ["a"] * 1025}, {"encoding_format": "int8", "input": "a"},
        {"input": "a", "pooling": "cls"}, {"input": "a", "messages": []},
        {"input": "a", "embed_dtype": "float16"}, {"input": "a", "dimensions": 0},
    ],
    ids=lambda body: str(body)[:40],
)  # fmt: skip
def test_wrong_value_is_refused_and_named(served, body):
    error = served.refused("/v1/embeddings", **body)
    assert error["param"] == (next(iter(set(body) - {"input"}), "input"))


def test_the_openai_sdk_reads_both_spellings(served):
    client = openai.OpenAI(base_url=f"{served.http.base_url}/v1", api_key="none")
    for encoding in ({}, {"encoding_format": "float"}):
        answer = client.embeddings.create(model="fake", input=["ab", "c"], **encoding)
        assert [item.embedding for item in answer.data] == [[97.0, 98.0] * 4, [99.0] * 8]
        assert answer.usage.prompt_tokens == 3
