"""The weights of a transformer as a pytree: one record a layer, matrices kept as [in, out].

A family that lacks a weight has None in its place, so that `jax.tree.map` never sees it.
"""

import jax
from jaxtyping import Array, Float

from paged_jax.config import ModelConfig
from paged_jax.models.packed import Matrix, PackedMatrix
from paged_jax.pytree import pytree


@pytree
class LayerParams:
    """The weights of one layer.

    Attributes:
        w_q, w_k, w_v: projections to the heads, head by head.
        w_o: from the heads back to the stream.
        b_q, b_k, b_v, b_o: their biases.
        q_norm, k_norm: norms of each query and key head.
        w_gate, w_up, w_down: the gated MLP; b_gate, b_up, b_down its biases.
    """

    attn_norm: Float[Array, " embed"]
    w_q: Matrix  # [embed q_heads*head_dim]
    w_k: Matrix  # [embed kv_heads*head_dim]
    w_v: Matrix  # [embed kv_heads*head_dim]
    w_o: Matrix  # [q_heads*head_dim embed]
    mlp_norm: Float[Array, " embed"]
    w_gate: Matrix  # [embed mlp]
    w_up: Matrix  # [embed mlp]
    w_down: Matrix  # [mlp embed]
    b_q: Float[Array, " q_heads*head_dim"] | None = None
    b_k: Float[Array, " kv_heads*head_dim"] | None = None
    b_v: Float[Array, " kv_heads*head_dim"] | None = None
    b_o: Float[Array, " embed"] | None = None
    q_norm: Float[Array, " head_dim"] | None = None
    k_norm: Float[Array, " head_dim"] | None = None
    b_gate: Float[Array, " mlp"] | None = None
    b_up: Float[Array, " mlp"] | None = None
    b_down: Float[Array, " embed"] | None = None


@pytree
class ModelParams:
    """The weights of a model; `unembed` is None when the output head is the embedding.

    A packed embedding is the head's matrix [embed vocab].
    """

    embed: Float[Array, "vocab embed"] | PackedMatrix
    layers: tuple[LayerParams, ...]
    final_norm: Float[Array, " embed"]
    unembed: Float[Array, "embed vocab"] | PackedMatrix | None = None

    @property
    def head(self) -> Float[Array, "_ _"] | PackedMatrix:
        """What gives the logits: [embed vocab], or the embedding where that is the head too."""
        return self.embed if self.unembed is None else self.unembed


def abstract_params(config: ModelConfig) -> ModelParams:
    """Return the parameters of `config` with a jax.ShapeDtypeStruct for every array.

    They are those before matrices are packed; vectors are of the activations' dtype.
    """
    leaf = lambda *shape: _struct(shape, config)  # noqa: E731
    vocab, embed = config.vocab_size, config.embed_dim
    return ModelParams(
        embed=leaf(vocab, embed),  # pyright: ignore[reportArgumentType]
        layers=tuple(_abstract_layer(config) for _ in range(config.num_layers)),
        final_norm=leaf(embed),  # pyright: ignore[reportArgumentType]
        unembed=None if config.tie_embeddings else leaf(embed, vocab),  # pyright: ignore[reportArgumentType]
    )


def _abstract_layer(config: ModelConfig) -> LayerParams:
    embed, mlp, head_dim = config.embed_dim, config.mlp_dim, config.head_dim
    q, kv = config.num_q_heads * head_dim, config.num_kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (embed,),
        "w_q": (embed, q),
        "w_k": (embed, kv),
        "w_v": (embed, kv),
        "w_o": (q, embed),
        "mlp_norm": (embed,),
        "w_gate": (embed, mlp),
        "w_up": (embed, mlp),
        "w_down": (mlp, embed),
    }
    if config.attention_bias:
        shapes |= {"b_q": (q,), "b_k": (kv,), "b_v": (kv,)}
    if config.attention_out_bias:
        shapes |= {"b_o": (embed,)}
    if config.qk_norm:
        shapes |= {"q_norm": (head_dim,), "k_norm": (head_dim,)}
    if config.mlp_bias:
        shapes |= {"b_gate": (mlp,), "b_up": (mlp,), "b_down": (embed,)}
    leaves = {name: _struct(shape, config) for name, shape in shapes.items()}
    return LayerParams(**leaves)  # pyright: ignore[reportArgumentType]


def _struct(shape: tuple[int, ...], config: ModelConfig) -> jax.ShapeDtypeStruct:
    dtype = config.dtype if len(shape) == 2 else config.activation_dtype
    return jax.ShapeDtypeStruct(shape, dtype)
