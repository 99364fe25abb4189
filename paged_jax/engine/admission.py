"""The door: which requests this engine can serve, and the values in force for those it can."""

import secrets
import time
from collections.abc import Sequence as Seq
from dataclasses import replace

from paged_jax.config import EngineConfig, ModelConfig, SchedulerConfig
from paged_jax.host.beams import check_width
from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.limits import check_beams_fit, check_fits
from paged_jax.host.request import Request
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.host.taps import Taps, check_taps


def check_request(prompt: Seq[int], params: SamplingParams, config: EngineConfig) -> None:
    """Refuse what the model, its context or the KV pool cannot serve.

    Raises:
        InvalidRequest: names the field, the value and the limit.
    """
    vocab = config.model.vocab_limit or config.model.vocab_size
    _check_prompt(prompt, vocab)
    _check_lengths(len(prompt), params.max_tokens, config.scheduler)
    if params.taps is not None:
        _check_taps(params.taps, len(prompt), params.max_tokens, config)
    _check_ids(params, vocab)
    _check_logprobs(params, config.max_logprobs)
    check_fits(len(prompt), params.n, config.scheduler, config.cache)
    if params.beams is not None:
        _check_beams(len(prompt), params, config)


def _check_prompt(prompt: Seq[int], vocab: int) -> None:
    if not prompt:
        raise InvalidRequest("prompt must hold at least one token", "prompt")
    for token in prompt:
        if type(token) is not int or not 0 <= token < vocab:
            raise InvalidRequest(
                f"prompt holds token id {str(token)[:40]}, out of vocabulary (0 to {vocab - 1})",
                "prompt",
            )


def _check_lengths(prompt_len: int, max_tokens: int | None, config: SchedulerConfig) -> None:
    limit, first_chunk = config.max_model_len, config.first_chunk
    if prompt_len >= limit:
        raise InvalidRequest(
            f"the maximum context length is {limit} tokens but the prompt has {prompt_len}: "
            f"shorten it to at most {limit - 1}",
            "prompt",
        )
    if max_tokens is not None and max_tokens > limit:
        raise InvalidRequest(
            f"max_tokens ({max_tokens}) exceeds the maximum context length of {limit} "
            f"tokens (the prompt has {prompt_len})",
            "max_tokens",
        )
    if prompt_len < first_chunk:
        raise InvalidRequest(
            f"the prompt has {prompt_len} tokens, but at least the first {first_chunk} see each "
            "other here (bidirectional): make it longer",
            "prompt",
        )


def _check_beams(prompt_len: int, params: SamplingParams, config: EngineConfig) -> None:
    """Refuse beams with too few candidates or blocks, or whose run could not be recorded."""
    ends = () if params.ignore_eos else config.model.eos_token_ids
    check_width(params.n, len(ends), config.max_logprobs)
    if config.record is not None:
        raise InvalidRequest("beam search is not offered while --record is on", "use_beam_search")
    limits, cache, most = config.scheduler, config.cache, params.max_tokens
    check_beams_fit(params.n, prompt_len, max_tokens=most, config=limits, cache=cache)


def _check_taps(taps: Taps, prompt_len: int, max_tokens: int | None, config: EngineConfig) -> None:
    if not config.has_taps:
        raise InvalidRequest("taps need an engine started with --enable-taps", "taps")
    limit, first_chunk = config.scheduler.max_model_len, config.scheduler.first_chunk
    if (taps.chunk_limit or first_chunk) < first_chunk:
        raise InvalidRequest(
            f"taps: attention of so many layers is read {taps.chunk_limit} tokens a step, but the "
            f"first {first_chunk} need one step: name fewer layers or positions",
            "taps",
        )
    num_tokens = min(limit, prompt_len + (max_tokens or limit))
    check_taps(taps, config.model, prompt_len=prompt_len, num_tokens=num_tokens)


def _check_ids(params: SamplingParams, vocab: int) -> None:
    named = (
        ("stop_token_ids", params.stop_ids),
        ("logit_bias", params.logit_bias or {}),
        ("allowed_token_ids", params.allowed_token_ids or ()),
    )
    for name, ids in named:
        for token in ids:
            if token >= vocab:
                raise InvalidRequest(
                    f"{name} holds token id {token}, out of vocabulary (0 to {vocab - 1}, "
                    f"vocabulary size {vocab})",
                    name,
                )


def _check_logprobs(params: SamplingParams, most: int) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if value is not None and value > most:
            raise InvalidRequest(
                f"{name} is {value} but at most {most} alternatives are given (--max-logprobs)",
                name,
            )


def make_request(
    prompt: Seq[int],
    params: SamplingParams,
    config: EngineConfig,
    *,
    request_id: str,
    priority: int,
    cache_salt: str | None,
) -> Request:
    """Return the request with its seed drawn and its answer length clamped to the room left."""
    room = config.scheduler.max_model_len - len(prompt)
    return Request(
        id=request_id,
        prompt=tuple(prompt),
        sampling=params,
        seed=secrets.randbits(63) if params.seed is None else params.seed,
        max_tokens=min(room, params.max_tokens or room),
        eos_ids=config.model.eos_token_ids,
        priority=priority,
        cache_salt=_salt(len(prompt), cache_salt, config.model),
        arrival_s=time.monotonic(),
    )


def make_fork(
    parent: Request,
    prompt: Seq[int],
    params: SamplingParams | None,
    config: EngineConfig,
    *,
    request_id: str,
) -> Request:
    """Return a request that begins with some of the parent's tokens; it is of the same owner.

    Args:
        params: None is the parent's, for one choice and with a seed of its own.
    Raises:
        InvalidRequest: there are taps, which a shared block would make wrong.
    """
    if parent.is_tapped or (params is not None and params.taps is not None):
        raise InvalidRequest("a fork shares blocks, and with taps none may be shared", "taps")
    if config.scheduler.first_chunk > 1:
        raise InvalidRequest("a fork shares blocks, and bidirectional ones may not be", "request")
    salt = parent.cache_salt
    if depends_on_length(len(parent.prompt), config.model):
        salt = (salt or "").rpartition("\0")[0] or None
    return make_request(
        prompt,
        replace(parent.sampling, n=1, seed=None) if params is None else params,
        config,
        request_id=request_id,
        priority=parent.priority,
        cache_salt=salt,
    )


def _salt(prompt_len: int, salt: str | None, model: ModelConfig) -> str | None:
    """Separate prompts whose keys differ for equal tokens."""
    return f"{salt or ''}\0{prompt_len}" if depends_on_length(prompt_len, model) else salt


def depends_on_length(prompt_len: int, model: ModelConfig) -> bool:
    """Return whether a prompt's keys depend on its own length.

    They do under dynamic rotary scaling, beyond the original length.
    """
    scaling = model.rope_scaling
    original = scaling.original_max_position or model.max_position
    return scaling.kind == "dynamic" and prompt_len > original
