"""PoolingParams: what of a prompt's hidden states its embedding is made of."""

from dataclasses import dataclass

from paged_jax.host.field_checks import show
from paged_jax.host.invalid_request import InvalidRequest

POOLINGS = ("last", "mean")


@dataclass(frozen=True, kw_only=True)
class PoolingParams:
    """How an embedding is made of the hidden states after the model's final norm.

    Raises InvalidRequest that names the field when a value is none of those it takes.

    Attributes:
        pooling: "last" is the last token's, "mean" the mean over all tokens; such a prompt does not
            read the prefix cache.
        normalize: scale the embedding to length 1.
    """

    pooling: str = "last"
    normalize: bool = True

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            names = " or ".join(POOLINGS)
            raise InvalidRequest(f"pooling must be {names}, not {show(self.pooling)}", "pooling")
        if type(self.normalize) is not bool:
            raise InvalidRequest(
                f"normalize must be true or false, not {show(self.normalize)}", "normalize"
            )
