"""Logits equal transformers' eager float32 ones: the same checkpoint folder, read by both.

Decoded tokens are compared too: transformers keeps its own cache there, and lengthens a "dynamic"
rotation as it goes.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from drive import drive
from tiny import make_tiny_folder

from paged_jax.models.rope import attention_factor, inverse_frequencies, rope_angles
from paged_jax.weights.load import load_params, read_config
from paged_jax.weights.source import ModelSource

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # transformers renames its arguments
]

ATOL = 1e-4  # two float32 implementations; logits are of size 10
ORIGINAL = {"original_max_position_embeddings": 64}
SCALINGS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0} | ORIGINAL,
    "yarn with mscale": {
        "rope_type": "yarn", "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 0.4,
        "beta_fast": 16, "beta_slow": 2, "truncate": False,
    } | ORIGINAL,
    "yarn with a given gain": {"type": "yarn", "factor": 4.0, "attention_factor": 0.8} | ORIGINAL,
    "llama3": {
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    } | ORIGINAL,
}  # fmt: skip
CASES = {
    "llama": ("llama", {}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama head_dim 24": ("llama", {"head_dim": 24}),
    "mistral": ("mistral", {}),
    "mistral window": ("mistral", {"sliding_window": 8}),
    "qwen2": ("qwen2", {}),
    "qwen2 window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3 tied": ("qwen3", {"tie_word_embeddings": True, "head_dim": 32, "attention_bias": True}),
    "groups of 3": ("llama", {"num_attention_heads": 6, "hidden_size": 96}),
    "groups of 5": (
        "qwen2",
        {"num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 80},
    ),
    "groups of 7": ("qwen3", {"num_attention_heads": 7, "num_key_value_heads": 1}),
}


def make_ids(count: int) -> list[int]:
    return np.random.default_rng(1).integers(3, 320, count).tolist()


def their_model(folder: Path):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, local_files_only=True
    )
    return model.eval()


def their_logits(folder: Path, ids: list[int], prompt_len: int) -> np.ndarray:
    """The whole prompt at once, then token by token with transformers' cache."""
    model, cache, rows = their_model(folder), transformers.DynamicCache(), []
    with torch.no_grad():
        for start, stop in [(0, prompt_len), *((at, at + 1) for at in range(prompt_len, len(ids)))]:
            out = model(torch.tensor([ids[start:stop]]), past_key_values=cache, use_cache=True)
            rows.append(out.logits[0].float().numpy())
    return np.concatenate(rows)


def our_logits(
    folder: Path, ids: list[int], prompt_len: int, *, chunk: int | None = None
) -> np.ndarray:
    source = ModelSource("folder", folder, "tiny")
    config = read_config(source, dtype="float32")
    params = load_params(source, config, progress=False)
    return drive(config, params, [ids], chunk=chunk, prompt_len=prompt_len)[0]


def agree(folder: Path, ids: list[int], prompt_len: int, chunks: list[int | None]) -> None:
    theirs = their_logits(folder, ids, prompt_len)
    for chunk in chunks:
        ours = our_logits(folder, ids, prompt_len, chunk=chunk)
        print(f"largest difference, chunk {chunk}: {np.abs(ours - theirs).max():.2e}")
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=ATOL)


@pytest.mark.parametrize(("family", "changes"), CASES.values(), ids=CASES)
def test_logits_equal_transformers_however_chunked(tmp_path, family, changes):
    folder = make_tiny_folder(tmp_path, family=family, **changes)
    agree(folder, make_ids(40), 30, [None, 5, 1])


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_logits_equal_transformers_for_each_rope_scaling(tmp_path, scaling):
    limit = 64 if scaling.get("rope_type") == "dynamic" else 256
    folder = make_tiny_folder(tmp_path, rope_scaling=scaling, max_position_embeddings=limit)
    agree(folder, make_ids(203), 200, [None, 50])


def test_a_decode_that_crosses_the_dynamic_border_equals_generate(tmp_path):
    scaling = {"rope_type": "dynamic", "factor": 4.0}
    folder = make_tiny_folder(tmp_path, rope_scaling=scaling, max_position_embeddings=32)
    prompt, model = make_ids(26), their_model(folder)
    out = model.generate(
        torch.tensor([prompt]), max_new_tokens=14, min_new_tokens=14, do_sample=False
    )
    ours = our_logits(folder, out[0].tolist(), len(prompt))
    ours[:, 2] = -np.inf  # min_new_tokens bans the end token
    assert ours[len(prompt) - 1 : -1].argmax(-1).tolist() == out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
@pytest.mark.parametrize("block", ["rope_scaling", "rope_parameters"])
def test_frequencies_equal_transformers(tmp_path, scaling, block):
    changes = {block: scaling | ({"rope_theta": 5e5} if block == "rope_parameters" else {})}
    folder = make_tiny_folder(tmp_path, head_dim=64, **changes)
    config = read_config(ModelSource("folder", folder, "tiny"), dtype="float32")
    rotary = their_model(folder).model.rotary_emb
    theirs = rotary.inv_freq.numpy()
    np.testing.assert_allclose(inverse_frequencies(config), theirs, rtol=1e-6, atol=0)
    assert attention_factor(config.rope_scaling) == pytest.approx(
        rotary.attention_scaling, abs=1e-6
    )


@pytest.mark.parametrize("length", [64, 65, 200, 1000])
def test_dynamic_frequencies_equal_transformers_at_each_length(tmp_path, length):
    scaling = {"rope_type": "dynamic", "factor": 4.0}
    folder = make_tiny_folder(tmp_path, rope_scaling=scaling, max_position_embeddings=64)
    config = read_config(ModelSource("folder", folder, "tiny"), dtype="float32")
    init = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS
    theirs, _ = init["dynamic"](transformers.AutoConfig.from_pretrained(folder), seq_len=length)
    cos, sin = rope_angles(jnp.asarray([1]), jnp.asarray([length]), config)
    np.testing.assert_allclose(np.arctan2(sin, cos)[0], theirs.numpy(), rtol=1e-6, atol=1e-7)
