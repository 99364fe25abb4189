"""The default model's tokenizer, read once."""

import pytest

from paged_jax.text.tokenizer import Tokenizer
from paged_jax.weights.default_model import default_model_path


@pytest.fixture(scope="session")
def smollm() -> Tokenizer:
    """SmolLM2's tokenizer, from its GGUF file."""
    return Tokenizer.from_gguf(default_model_path())
