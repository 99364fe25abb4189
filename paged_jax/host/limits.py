"""What could never be served, however long it waited: refused at the door."""

from paged_jax.config import CacheConfig, SchedulerConfig
from paged_jax.host.invalid_request import InvalidRequest


def check_fits(prompt_len: int, n: int, config: SchedulerConfig, cache: CacheConfig) -> None:
    """Raise InvalidRequest if a prompt of so many tokens with `n` choices never finds room."""
    longest = config.max_model_len - 1
    if prompt_len < 1:
        raise InvalidRequest("prompt must have at least one token", "prompt")
    if prompt_len > longest:
        raise InvalidRequest(
            f"prompt has {prompt_len} tokens, but with max_model_len {longest + 1} at most"
            f" {longest} leave room for an answer; shorten it or raise --max-model-len",
            "prompt",
        )
    needed, num_usable = -(-(prompt_len + 1) // cache.block_size), cache.num_blocks - 1
    if needed > num_usable:
        raise InvalidRequest(
            f"prompt needs {needed} KV blocks, but there are {num_usable};"
            " shorten it or give the KV pool more memory",
            "prompt",
        )
    if n > config.max_seqs:
        raise InvalidRequest(
            f"n ({n}) must not exceed the {config.max_seqs} sequences that run at once"
            " (--max-num-seqs)",
            "n",
        )


def max_len(config: SchedulerConfig, cache: CacheConfig) -> int:
    """Return the length, in tokens, at which every sequence ends.

    Not even the whole pool has room for a token more, unless `max_model_len` is reached before.
    """
    return min(config.max_model_len, (cache.num_blocks - 1) * cache.block_size + 1)


def check_beams_fit(
    width: int,
    prompt_len: int,
    *,
    max_tokens: int | None,
    config: SchedulerConfig,
    cache: CacheConfig,
) -> None:
    """Raise InvalidRequest for beams that may fill the pool: none can go on without the others."""
    longest = max_len(config, cache)
    num_tokens = min(prompt_len + (max_tokens or longest), longest)
    needed, num_usable = width * -(-num_tokens // cache.block_size), cache.num_blocks - 1
    if needed > num_usable:
        raise InvalidRequest(
            f"{width} beams of {num_tokens} tokens may need {needed} KV blocks, but there are"
            f" {num_usable}; use fewer beams or a smaller max_tokens",
            "n",
        )
