"""Embeddings against the hidden states of the float64 oracle, whatever the steps they came from."""

import json

import numpy as np
import pytest
from oracle import oracle_hidden

from paged_jax import InvalidRequest, PoolingParams, SamplingParams, SnapshotError

PROMPTS = [[5 + (7 * i) % 90 for i in range(length)] for length in (1, 16, 100, 33)]


def expected(config, params, prompt: list[int], pooling: PoolingParams) -> np.ndarray:
    hidden = oracle_hidden(config, params, prompt)
    vector = hidden[-1] if pooling.pooling == "last" else hidden.mean(0)
    return vector / np.linalg.norm(vector) if pooling.normalize else vector


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("kind", ["last", "mean"])
def test_embeddings_equal_the_oracle_in_chunks_and_from_the_cache(
    llm, plain_params, kind, normalize
) -> None:
    pooling = PoolingParams(pooling=kind, normalize=normalize)
    for _ in ("cold", "warm"):  # chunks are of 64 tokens at most, for all prompts together
        outputs = llm.embed(PROMPTS, pooling, use_tqdm=False)
        for prompt, output in zip(PROMPTS, outputs, strict=True):
            wanted = expected(llm.engine.config.model, plain_params, prompt, pooling)
            np.testing.assert_allclose(output.outputs.embedding, wanted, rtol=2e-4, atol=2e-4)
            assert output.prompt_token_ids == prompt and output.outputs.hidden_size == 64
    cached = [output.num_cached_tokens for output in outputs]
    assert cached == ([0, 0, 96, 32] if kind == "last" else [0] * 4)


def test_a_preempted_prompt_is_counted_once(make_llm, plain_params) -> None:
    llm = make_llm(num_gpu_blocks_override=6, max_num_batched_tokens=8, max_num_seqs=4)
    pooling = PoolingParams(pooling="mean")
    embedded = SamplingParams(max_tokens=1, temperature=0.0, pooling=pooling)
    llm.engine.add([9] * 31, SamplingParams(max_tokens=20, ignore_eos=True), request_id="long")
    llm.engine.step()
    llm.engine.add(PROMPTS[3], embedded, request_id="embedded")
    deltas = []
    while llm.engine.has_work:
        deltas += llm.engine.step()
    (last,) = [d for d in deltas if d.request_id == "embedded" and d.finished]
    assert last.metrics is not None and last.metrics.num_preemptions > 0
    wanted = expected(llm.engine.config.model, plain_params, PROMPTS[3], pooling)
    np.testing.assert_allclose(last.embedding, wanted, rtol=2e-4, atol=2e-4)


def test_an_aborted_prompt_has_no_embedding(llm) -> None:
    params = SamplingParams(max_tokens=1, pooling=PoolingParams(pooling="mean"))
    llm.engine.add(PROMPTS[2], params, request_id="gone")
    llm.engine.step()
    assert llm.engine.abort("gone").embedding is None


def test_no_snapshot_is_taken_in_the_middle_of_an_embedding(llm, tmp_path) -> None:
    params = SamplingParams(max_tokens=1, pooling=PoolingParams())
    llm.engine.add(PROMPTS[2], params, request_id="embedded")
    with pytest.raises(SnapshotError, match="embedded"):
        llm.engine.snapshot(tmp_path / "state")
    llm.engine.abort("embedded")


@pytest.mark.parametrize("fields", [{"pooling": "max"}, {"normalize": 1}], ids=json.dumps)
def test_wrong_pooling_is_refused_and_named(fields) -> None:
    with pytest.raises(InvalidRequest) as caught:
        PoolingParams(**fields)
    assert caught.value.param == next(iter(fields))
