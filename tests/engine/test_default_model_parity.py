"""The default model against transformers on the same weights: ids, log-probabilities, bfloat16.

transformers reads the same GGUF file with its own reader and runs in float32.
"""

import statistics
from collections.abc import Iterator

import pytest
from parity_prompts import PLAIN, QUESTIONS

from paged_jax import LLM, SamplingParams
from paged_jax.weights.default_model import default_model_path

pytestmark = [pytest.mark.parity, pytest.mark.slow, pytest.mark.timeout(1800)]

NUM_TOKENS = 64
OPTIONS: dict[str, object] = {"max_model_len": 512, "max_num_batched_tokens": 256}


class Reference:
    """transformers on the default model's weights."""

    def __init__(self, dtype: str):
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        path = default_model_path()
        self.torch = torch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        ).to(getattr(torch, dtype))

    def greedy(self, prompt: list[int]) -> list[int]:
        ids = self.torch.tensor([prompt])
        out = self.model.generate(
            ids,
            attention_mask=self.torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=2,
        )
        return out[0, len(prompt) :].tolist()

    def logprobs(self, ids: list[int]) -> list[float]:
        """Log-probability of each id after the first."""
        with self.torch.no_grad():
            logits = self.model(self.torch.tensor([ids])).logits[0, :-1].float()
        table = self.torch.log_softmax(logits, -1)
        return table.gather(1, self.torch.tensor(ids[1:])[:, None])[:, 0].tolist()


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(dtype="float32", **OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="module")
def prompts(llm: LLM) -> list[list[int]]:
    tokenizer = llm.get_tokenizer()
    chats = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in QUESTIONS]
    return [tokenizer.encode(text) for text in PLAIN] + chats


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference("float32")


@pytest.fixture(scope="module")
def expected(reference: Reference, prompts: list[list[int]]) -> list[list[int]]:
    return [reference.greedy(prompt) for prompt in prompts]


def greedy(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    return [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)]


def score(llm: LLM, texts: list[list[int]]) -> list[list[float]]:
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    outputs = llm.generate(texts, params, use_tqdm=False)
    return [
        [
            table[token].logprob
            for token, table in zip(ids[1:], output.prompt_logprobs[1:], strict=True)
        ]
        for ids, output in zip(texts, outputs, strict=True)
    ]


def differences(found: list[list[float]], wanted: list[list[float]]) -> list[float]:
    return [
        abs(a - b)
        for one, other in zip(found, wanted, strict=True)
        for a, b in zip(one, other, strict=True)
    ]


def test_greedy_ids_equal(llm: LLM, prompts: list[list[int]], expected: list[list[int]]) -> None:
    assert len(prompts) == 32
    assert greedy(llm, prompts) == expected


def test_prompt_logprobs_agree_to_1e_4(
    llm: LLM, reference: Reference, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    texts = [prompt + answer for prompt, answer in zip(prompts, expected, strict=True)]
    found, wanted = score(llm, texts), [reference.logprobs(text) for text in texts]

    gaps = differences(found, wanted)
    print(f"float32: {len(gaps)} positions, max |difference| {max(gaps):.2e}")
    assert max(gaps) <= 1e-4


def test_bfloat16_is_as_near_to_float32_as_transformers_is(
    reference: Reference, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    texts = [prompt + answer for prompt, answer in zip(prompts, expected, strict=True)]
    exact = [reference.logprobs(text) for text in texts]
    half = Reference("bfloat16")
    theirs = [half.logprobs(text) for text in texts], [half.greedy(prompt) for prompt in prompts]
    with LLM(dtype="bfloat16", **OPTIONS) as llm:
        ours = score(llm, texts), greedy(llm, prompts)

    gaps = {}
    for name, (scores, ids) in {"paged_jax": ours, "transformers": theirs}.items():
        gaps[name] = statistics.mean(differences(scores, exact))
        equal = sum(a == b for a, b in zip(ids, expected, strict=True)) / len(expected)
        print(f"bfloat16 {name}: mean |difference| {gaps[name]:.4f}, all ids equal {equal:.0%}")
    assert gaps["paged_jax"] <= 1.25 * gaps["transformers"]
