"""Beam search equals transformers': 16 prompts, 4 beams, 32 tokens, float32."""

import pytest
from tiny import make_tiny_folder, tiny_words

from paged_jax import LLM, BeamSearchParams

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ENDS = (59, 87, 22)  # ids that occur often enough in what the random model says

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("ends", [[2], list(ENDS)], ids=["rare ends", "many ends"])
def test_answers_are_transformers(tmp_path, ends, penalty) -> None:
    folder = make_tiny_folder(tmp_path / "m", eos_token_id=ends)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = [[3 + (7 * at + index) % 250 for at in range(5 + index)] for index in range(16)]
    params = BeamSearchParams(beam_width=4, max_tokens=32, length_penalty=penalty)
    with LLM(folder, dtype="float32", max_model_len=128, max_num_batched_tokens=64,
             kv_cache_memory=8 << 20) as llm:  # fmt: skip
        outputs = llm.beam_search(prompts, params)
    for prompt, output in zip(prompts, outputs, strict=True):
        expected = model.generate(
            torch.tensor([prompt]), num_beams=4, num_return_sequences=4, max_new_tokens=32,
            do_sample=False, length_penalty=penalty, return_dict_in_generate=True,
            output_scores=True, pad_token_id=0, suppress_tokens=list(range(len(tiny_words()), 320)),
        )  # fmt: skip
        ids = [trim(row[len(prompt) :].tolist(), ends) for row in expected.sequences]
        assert [beam.tokens[len(prompt) :] for beam in output.sequences] == ids
        scores = [
            b.cum_logprob / len(i) ** penalty for b, i in zip(output.sequences, ids, strict=True)
        ]
        assert scores == pytest.approx(expected.sequences_scores.tolist(), abs=1e-3)


def trim(answer: list[int], ends: list[int]) -> list[int]:
    """Without the padding behind an end."""
    at = next((at for at, token in enumerate(answer) if token in ends), len(answer))
    return answer[: at + 1]
