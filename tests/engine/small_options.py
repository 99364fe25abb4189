"""Options of the engines here: small and alike."""

SMALL: dict[str, object] = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 32,
    "kv_cache_memory": 8 << 20,
}
