"""Replacing the parameters of an engine: what follows is computed with the new ones alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_options import SMALL
from tiny import make_tiny_folder

from paged_jax import LLM, SamplingParams
from paged_jax.config import ModelError
from paged_jax.engine.weight_update import fitted
from paged_jax.models.params import ModelParams
from paged_jax.weights.load import load_params, read_config
from paged_jax.weights.source import resolve_model

PROMPT = [(7 * i) % 250 + 3 for i in range(40)]
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2)


def plain(folder: Path) -> ModelParams:
    source = resolve_model(str(folder))
    config = replace(read_config(source, dtype="float32"), is_packed=False)
    return load_params(source, config, progress=False)


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the same shape with other weights."""
    folder = tmp_path_factory.mktemp("other") / "llama"
    return make_tiny_folder(folder, seed=1, max_position_embeddings=2048)


def test_an_updated_engine_answers_as_one_started_with_the_new_weights(
    make_llm: Callable[..., LLM], other_folder: Path
) -> None:
    llm, old = make_llm(), None
    with LLM(other_folder, **SMALL) as other:
        (expected,) = other.generate([PROMPT], PARAMS, use_tqdm=False)
    (before,) = llm.generate([PROMPT], PARAMS, use_tqdm=False)
    old = llm.engine.params

    assert llm.update_params(plain(other_folder)) == 1
    (after,) = llm.generate([PROMPT], PARAMS, use_tqdm=False)

    assert (before.weights_version, after.weights_version) == (0, 1)
    assert after.num_cached_tokens == 0, "a block of the old weights was found"
    assert after.outputs[0].logprobs == expected.outputs[0].logprobs
    assert llm.update_params(old) == 2
    (again,) = llm.generate([PROMPT], PARAMS, use_tqdm=False)
    assert again.outputs[0].logprobs == before.outputs[0].logprobs
    assert llm.engine.stats().num_compilations == 0


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plain_matrices_are_packed_as_at_load(tmp_path: Path, dtype: str) -> None:
    folder = make_tiny_folder(tmp_path / "tied", tie_word_embeddings=True)
    source = resolve_model(str(folder))
    config = read_config(source, dtype=dtype)
    current = load_params(source, config, progress=False)

    rounded = lambda leaf: leaf.astype(dtype) if leaf.ndim == 2 else leaf  # noqa: E731
    given = jax.tree.map(rounded, plain(folder))
    blank = jax.tree.map(jnp.zeros_like, current)

    for new, old in zip(
        jax.tree.leaves(fitted(given, blank, config)), jax.tree.leaves(current), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(new), np.asarray(old))


def broken(params: ModelParams, **changes: object) -> ModelParams:
    first = replace(params.layers[0], **changes)
    return replace(params, layers=(first, *params.layers[1:]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda p: broken(p, w_q=p.layers[0].w_q[:, :-1]),
            r"layers\[0\].w_q is float32 \[64, 63\], but must be float32 \[64, 64\]",
        ),
        (
            lambda p: broken(p, w_up=p.layers[0].w_up.astype("bfloat16")),
            r"layers\[0\].w_up is bfloat16 \[64, 128\], but must be float32",
        ),
        (lambda p: replace(p, unembed=None), "unembed is missing: give the parameters"),
        (
            lambda p: replace(p, layers=(*p.layers, p.layers[0])),
            r"layers\[2\].attn_norm is not of this model",
        ),
    ],
)
def test_the_array_that_does_not_fit_is_named(llm, plain_params, change, message) -> None:
    before, version = llm.engine.params, llm.engine.weights_version
    with pytest.raises(ModelError, match=message):
        llm.update_params(change(plain_params))
    assert llm.engine.params is before and llm.engine.weights_version == version


def test_running_requests_hold_an_update_up_until_they_end_or_are_aborted(llm: LLM) -> None:
    engine = llm.engine
    engine.add(PROMPT, PARAMS, request_id="a")
    engine.step()
    engine.step()
    with pytest.raises(RuntimeError, match="1 requests are being answered with the old"):
        llm.update_params(engine.params)
    engine.abort("a")

    version = llm.update_params(engine.params)

    (output,) = llm.generate([PROMPT], PARAMS, use_tqdm=False)
    assert output.weights_version == version
