"""Shapes of well-known models, for measurements with random weights."""

from paged_jax.config import ModelConfig

LLAMA_3_1_8B = ModelConfig(
    family="llama",
    vocab_size=128256,
    num_layers=32,
    embed_dim=4096,
    mlp_dim=14336,
    num_q_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position=131072,
    rope_theta=500000.0,
    dtype="bfloat16",
)
QWEN3_8B = ModelConfig(
    family="qwen3",
    vocab_size=151936,
    num_layers=36,
    embed_dim=4096,
    mlp_dim=12288,
    num_q_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position=40960,
    rope_theta=1000000.0,
    norm_eps=1e-6,
    qk_norm=True,
    dtype="bfloat16",
)
SMOLLM2_135M = ModelConfig(
    family="llama",
    vocab_size=49152,
    num_layers=30,
    embed_dim=576,
    mlp_dim=1536,
    num_q_heads=9,
    num_kv_heads=3,
    head_dim=64,
    max_position=8192,
    rope_theta=100000.0,
    tie_embeddings=True,
    dtype="bfloat16",
)


def num_layer_weights(config: ModelConfig) -> int:
    """Return how many numbers the matrices of all layers have."""
    heads = 2 * (config.num_q_heads + config.num_kv_heads)  # q and o, k and v
    layer = config.embed_dim * (heads * config.head_dim + 3 * config.mlp_dim)
    return config.num_layers * layer
