"""Text in, text out: tokenizers, incremental decoding, stop strings and chat templates."""
