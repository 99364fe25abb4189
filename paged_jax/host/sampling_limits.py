"""The most that SamplingParams take: checked there, published by the HTTP side."""

MAX_N = 128
MAX_STOP_STRINGS = 4
MAX_STOP_LEN = 1024
MAX_STOP_IDS = 1024
MAX_BIAS_IDS = 1024
MAX_ALLOWED_IDS = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_LEN = 256
INT64 = 1 << 63

# Kind and bounds of every numeric field.
RANGES: dict[str, tuple[type, float, float]] = {
    "n": (int, 1, MAX_N),
    "presence_penalty": (float, -2, 2),
    "frequency_penalty": (float, -2, 2),
    "repetition_penalty": (float, 1e-6, 1e6),
    "temperature": (float, 0, 2),
    "top_p": (float, 0, 1),
    "top_k": (int, 0, INT64),
    "min_p": (float, 0, 1),
    "seed": (int, -INT64, INT64 - 1),
    "max_tokens": (int, 1, INT64),
    "min_tokens": (int, 0, INT64),
    "logprobs": (int, 0, INT64),
    "prompt_logprobs": (int, 0, INT64),
    "xtc_probability": (float, 0, 1),
    "xtc_threshold": (float, 0, 1),
    "dry_multiplier": (float, 0, 100),
    "dry_base": (float, 1, 100),
    "dry_allowed_length": (int, 1, 4096),
}
