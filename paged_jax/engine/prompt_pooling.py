"""Embeddings: made of a prompt's hidden states by the steps that compute the prompt."""

import numpy as np
from jaxtyping import Float

from paged_jax.host.pooling import PoolingParams


class PromptPooling:
    """One prompt's embedding in the making; a position that is computed again counts once."""

    def __init__(self, params: PoolingParams, prompt_len: int):
        self._params, self._prompt_len = params, prompt_len
        self._sum: np.ndarray | None = None
        self._num_seen = 0

    def add(self, start: int, hidden: Float[np.ndarray, "tokens embed"]) -> None:
        """Take up the hidden states of the tokens at `start` and after it."""
        end = min(start + len(hidden), self._prompt_len)
        rows = hidden[max(0, self._num_seen - start) : max(0, end - start)].astype(np.float64)
        if not len(rows):
            return
        self._num_seen = end
        if self._params.pooling == "last":
            self._sum = rows[-1]
        else:
            self._sum = rows.sum(0) + (0.0 if self._sum is None else self._sum)

    def embedding(self) -> tuple[float, ...] | None:
        """Return the embedding, rounded to float32; None while a part of the prompt is missing."""
        if self._sum is None or self._num_seen < self._prompt_len:
            return None
        count = self._prompt_len if self._params.pooling == "mean" else 1
        vector = self._sum / count
        if self._params.normalize:
            vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
        return tuple(vector.astype(np.float32).tolist())
