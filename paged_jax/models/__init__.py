"""Decoder-only transformers: parameter pytrees, the forward pass, and the configurations known."""

from paged_jax.config import ModelError

__all__ = ["ModelError"]
