"""From a JSON body to a `Call`, or to an InvalidRequest that names the field.

Sampling fields are checked by SamplingParams itself; here is what only HTTP has.
"""

import time
import uuid
from typing import Any

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.sampling_params import SamplingParams
from server.call import AnswerOptions, Call, Prompt
from server.errors import cut
from server.fields import INT64, MAX_STRING_LEN, Fields
from server.logprobs import TokenSpelling
from server.prompts import chat_prompt, completion_prompts
from server.state import ServerState
from server.unoffered import refuse_unoffered
from server.wire import Json

COMPLETION_MAX_TOKENS = 16
_PASSED_ON = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
)


def parse_completion(state: ServerState, body: Json, header_id: str | None) -> Call:
    """Read the body of /v1/completions.

    Raises:
        InvalidRequest: names the field at fault.
        ApiError: the model is unknown.
    """
    fields = Fields(body)
    state.check_model(fields)
    refuse_unoffered(fields)
    echo = fields.boolean("echo")
    max_tokens = fields.integer("max_tokens", 0 if echo else 1, state.limit)
    max_tokens = COMPLETION_MAX_TOKENS if max_tokens is None else max_tokens
    logprobs = fields.integer("logprobs", 0, state.engine.config.max_logprobs)
    answer = _answer_options(state, fields, logprobs=logprobs, is_scoring=max_tokens == 0)
    echoed = logprobs if echo else None
    params = _sampling_params(
        state, fields, answer, max_tokens=max(1, max_tokens), echoed_logprobs=echoed
    )
    prompts = completion_prompts(state, fields, n=params.n, echo=echo)
    return _call(state, fields, "cmpl-", header_id, (prompts, params, answer))


def parse_chat(state: ServerState, body: Json, header_id: str | None) -> Call:
    """Read the body of /v1/chat/completions; raises as `parse_completion`."""
    fields = Fields(body)
    state.check_model(fields)
    refuse_unoffered(fields)
    logprobs = _chat_logprobs(fields, state.engine.config.max_logprobs)
    answer = _answer_options(state, fields, logprobs=logprobs)
    limits = [
        fields.integer(name, 1, state.limit) for name in ("max_completion_tokens", "max_tokens")
    ]
    default: Any = state.engine.default_sampling.get("max_tokens")
    max_tokens = next((limit for limit in limits if limit is not None), default)
    params = _sampling_params(state, fields, answer, max_tokens=max_tokens)
    try:
        prompt = chat_prompt(state, fields, echo=answer.echo)
        return _call(state, fields, "chatcmpl-", header_id, ((prompt,), params, answer))
    except InvalidRequest as error:
        error.param = "messages" if error.param == "prompt" else error.param
        raise


def _call(
    state: ServerState,
    fields: Fields,
    prefix: str,
    header_id: str | None,
    parts: tuple[tuple[Prompt, ...], SamplingParams, AnswerOptions],
) -> Call:
    prompts, params, answer = parts
    for prompt in prompts:
        state.engine.check(prompt.ids, params)
    own_id = fields.text("request_id", max_len=MAX_STRING_LEN)
    if header_id is not None and not 1 <= len(header_id) <= MAX_STRING_LEN:
        raise InvalidRequest(
            f"X-Request-Id must have 1 to {MAX_STRING_LEN} characters", "X-Request-Id"
        )
    return Call(
        id=prefix + (header_id or own_id or uuid.uuid4().hex),
        created=int(time.time()),
        model=state.model,
        prompts=prompts,
        params=params,
        answer=answer,
        priority=fields.integer("priority", -INT64, INT64 - 1) or 0,
        cache_salt=fields.text("cache_salt", max_len=MAX_STRING_LEN),
    )


def _chat_logprobs(fields: Fields, most: int) -> int | None:
    is_on = fields.boolean("logprobs")
    count = fields.integer("top_logprobs", 0, most)
    if count and not is_on:
        raise InvalidRequest("top_logprobs needs logprobs to be true", "top_logprobs")
    return count or 0 if is_on else None


def _answer_options(
    state: ServerState, fields: Fields, *, logprobs: int | None, is_scoring: bool = False
) -> AnswerOptions:
    stream = fields.boolean("stream")
    options = fields.mapping("stream_options")
    if options is not None and not stream:
        raise InvalidRequest("stream_options needs stream to be true", "stream_options")
    named = Fields({f"stream_options.{name}": value for name, value in (options or {}).items()})
    include_usage = named.boolean("stream_options.include_usage")
    continuous = named.boolean("stream_options.continuous_usage_stats")
    prompt_logprobs = fields.integer("prompt_logprobs", 0, state.engine.config.max_logprobs)
    if prompt_logprobs is not None and stream:
        raise InvalidRequest("prompt_logprobs is not offered in streams", "prompt_logprobs")
    as_ids = fields.boolean("return_tokens_as_token_ids")
    return AnswerOptions(
        spell=TokenSpelling(state.engine.tokenizer.token_text, as_ids),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and continuous,
        echo=fields.boolean("echo"),
        is_scoring=is_scoring,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        return_token_ids=fields.boolean("return_token_ids"),
    )


def _sampling_params(
    state: ServerState,
    fields: Fields,
    answer: AnswerOptions,
    *,
    max_tokens: int | None,
    echoed_logprobs: int | None = None,
) -> SamplingParams:
    """Build from the body, over the model's defaults; an echoed prompt may need logprobs too."""
    values: dict[str, Any] = dict(state.engine.default_sampling)
    values |= {name: fields.get(name) for name in _PASSED_ON if fields.has(name)}
    if fields.has("stop"):
        values["stop"] = _stop(fields)
    if fields.has("stop_token_ids"):
        values["stop_token_ids"] = fields.items("stop_token_ids", int, "token ids")
    values |= {
        "logit_bias": _logit_bias(fields),
        "max_tokens": max_tokens,
        "logprobs": None if answer.is_scoring else answer.logprobs,
        "prompt_logprobs": _larger(answer.prompt_logprobs, echoed_logprobs),
    }
    return SamplingParams(**values)


def _stop(fields: Fields) -> Any:
    value = fields.get("stop")
    return value if isinstance(value, str) else fields.items("stop", str, "strings")


def _larger(*counts: int | None) -> int | None:
    return max((count for count in counts if count is not None), default=None)


def _logit_bias(fields: Fields) -> dict[int, Any]:
    """Turn the string keys that JSON needs into ids."""
    bias: dict[int, Any] = {}
    for key, value in (fields.mapping("logit_bias") or {}).items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 20):
            raise InvalidRequest(f"logit_bias must map token ids, not {cut(key)}", "logit_bias")
        bias[int(key)] = value
    return bias
