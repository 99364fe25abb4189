"""What taps read equals transformers' hidden states and attentions, float32 beside float32."""

from pathlib import Path

import numpy as np
import pytest
from tiny import make_tiny_folder

from paged_jax import LLM, SamplingParams, Taps

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::FutureWarning")]

ATOL = 1e-4  # two float32 implementations; the stream's numbers are of size 10
CASES = {
    "llama": ("llama", {"num_hidden_layers": 3}),
    "mistral window": ("mistral", {"sliding_window": 8}),
    "qwen3": ("qwen3", {}),
}
OPTIONS = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 8, "enable_taps": True}


def theirs(folder: Path, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """[layers+1 tokens embed], the last one normed, and [layers tokens heads tokens]."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, local_files_only=True
    ).eval()
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True, output_attentions=True)
    hidden = np.stack([each[0].numpy() for each in out.hidden_states])
    return hidden, np.stack([each[0].numpy().swapaxes(0, 1) for each in out.attentions])


def normed(x: np.ndarray, folder: Path) -> np.ndarray:
    from safetensors.numpy import load_file

    weight = load_file(folder / "model.safetensors")["model.norm.weight"]
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight


@pytest.mark.parametrize("budget", [16, 64])
@pytest.mark.parametrize(("family", "changes"), CASES.values(), ids=CASES)
def test_all_layers_equal_transformers(
    tmp_path: Path, family: str, changes: dict[str, object], budget: int
) -> None:
    folder = make_tiny_folder(tmp_path, family=family, **changes)
    prompt = np.random.default_rng(1).integers(3, 260, 37).tolist()
    with LLM(folder, max_num_batched_tokens=budget, **OPTIONS) as llm:
        layers = range(llm.engine.config.model.num_layers)
        taps = Taps(residual=(*layers, len(layers)), attention=layers)
        params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True, taps=taps)
        llm.generate([prompt], params, use_tqdm=False)  # the second finds nothing cached
        output = llm.generate([prompt], params, use_tqdm=False)[0]
    hidden, weights = theirs(folder, output.prompt_token_ids + output.outputs[0].token_ids[:-1])
    residual, attention = output.captures.residual, output.captures.attention
    assert output.captures.positions == tuple(range(45)) and output.num_cached_tokens == 0
    for layer in layers:
        np.testing.assert_allclose(residual[layer], hidden[layer], rtol=0, atol=ATOL)
        np.testing.assert_allclose(attention[layer], weights[layer], rtol=0, atol=ATOL)
    last = normed(residual[len(layers)], folder)
    np.testing.assert_allclose(last, hidden[-1], rtol=0, atol=ATOL)
