"""From a JSON body to a `Call`, or to an InvalidRequest that names the field.

Sampling fields are checked by SamplingParams itself; here is what only HTTP has.
"""

import time
import uuid
from dataclasses import replace
from typing import Any

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.text.answer_reader import PLAIN
from server.beams import beam_params
from server.call import AnswerOptions, Call, Prompt
from server.errors import cut
from server.logprobs import TokenSpelling
from server.prompts import chat_prompt, completion_prompts, render_messages
from server.schema import Fields, check
from server.state import ServerState
from server.structure import form_of
from server.tables import REQUEST
from server.taps import check_size, taps_of
from server.tools import reading_of
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
    "stop",
    "stop_token_ids",
    "allowed_token_ids",
    "bad_words",
    "xtc_probability",
    "xtc_threshold",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_sequence_breakers",
)


def parse_completion(state: ServerState, fields: Fields, header_id: str | None) -> Call:
    """Read the body of /v1/completions.

    Raises:
        InvalidRequest: names the field at fault.
    """
    n, best_of = fields.get("n") or 1, fields.get("best_of")
    if best_of not in (None, n):
        raise InvalidRequest(f"best_of must equal n ({n}), not {cut(best_of)}", "best_of")
    max_tokens: int | None = fields.get("max_tokens")
    max_tokens = COMPLETION_MAX_TOKENS if max_tokens is None else max_tokens
    echo: bool = fields.get("echo")
    if max_tokens == 0 and not echo:
        raise InvalidRequest("max_tokens must be at least 1 without echo", "max_tokens")
    logprobs: int | None = fields.get("logprobs")
    answer = _answer_options(state, fields, logprobs=logprobs, is_scoring=max_tokens == 0)
    echoed = logprobs if echo else None
    params = _sampling_params(
        state, fields, answer, max_tokens=max(1, max_tokens), echoed_logprobs=echoed
    )
    params = replace(params, structured_outputs=form_of(state, fields, PLAIN))
    prompts = completion_prompts(state, fields, n=params.n, echo=echo)
    return make_call(state, fields, "cmpl-", header_id, (prompts, params, answer))


def parse_chat(
    state: ServerState, fields: Fields, header_id: str | None, *, prefix: str = "chatcmpl-"
) -> Call:
    """Read the body of /v1/chat/completions; raises as `parse_completion`."""
    answer = _answer_options(state, fields, logprobs=_chat_logprobs(fields))
    limits = [fields.get(name) for name in ("max_completion_tokens", "max_tokens")]
    default: Any = state.engine.default_sampling.get("max_tokens")
    max_tokens = next((limit for limit in limits if limit is not None), default)
    params = _sampling_params(state, fields, answer, max_tokens=max_tokens)
    text = render_messages(state, fields)
    reading = reading_of(state.settings, fields, text)
    params = replace(params, structured_outputs=form_of(state, fields, reading))
    if reading.calls is not None and reading.calls.has_special_marks:
        params = replace(params, skip_special_tokens=False)
    try:
        prompt = chat_prompt(state, fields, text, echo=answer.echo)
        parts = ((prompt,), params, replace(answer, reading=reading, think_ids=state.think_ids))
        return make_call(state, fields, prefix, header_id, parts)
    except InvalidRequest as error:
        error.param = "messages" if error.param == "prompt" else error.param
        raise


def make_call(
    state: ServerState,
    fields: Fields,
    prefix: str,
    header_id: str | None,
    parts: tuple[tuple[Prompt, ...], SamplingParams, AnswerOptions],
) -> Call:
    """Return the checked call of these parts.

    Args:
        prefix: what the answer's id begins with.
        header_id: the client's, of the X-Request-Id header.

    Raises:
        InvalidRequest: the engine can never serve it, or the id is none.
    """
    prompts, params, answer = parts
    if len(prompts) > 1 and fields.get("return_metrics"):
        raise InvalidRequest("return_metrics needs one prompt, not several", "return_metrics")
    for prompt in prompts:
        state.engine.check(prompt.ids, params)
        longest = min(state.limit, len(prompt.ids) + (params.max_tokens or state.limit))
        check_size(params.taps, state.engine.config.model, longest)
    own_id: str | None = fields.get("request_id")
    if header_id is not None:
        check(REQUEST["request_id"], header_id, "X-Request-Id")
    return Call(
        id=prefix + (header_id or own_id or uuid.uuid4().hex),
        created=int(time.time()),
        model=state.model,
        prompts=prompts,
        params=params,
        answer=answer,
        priority=fields.get("priority") or 0,
        cache_salt=fields.get("cache_salt"),
    )


def _chat_logprobs(fields: Fields) -> int | None:
    is_on: bool = fields.get("logprobs")
    count: int | None = fields.get("top_logprobs")
    if count and not is_on:
        raise InvalidRequest("top_logprobs needs logprobs to be true", "top_logprobs")
    return count or 0 if is_on else None


def _answer_options(
    state: ServerState, fields: Fields, *, logprobs: int | None, is_scoring: bool = False
) -> AnswerOptions:
    stream: bool = fields.get("stream")
    if fields.has("stream_options") and not stream:
        raise InvalidRequest("stream_options needs stream to be true", "stream_options")
    options: Json = fields.get("stream_options") or {}
    include_usage = bool(options.get("include_usage"))
    prompt_logprobs: int | None = fields.get("prompt_logprobs")
    if prompt_logprobs is not None and stream:
        raise InvalidRequest("prompt_logprobs is not offered in streams", "prompt_logprobs")
    as_ids: bool = fields.get("return_tokens_as_token_ids")
    return AnswerOptions(
        spell=TokenSpelling(state.engine.tokenizer.token_text, as_ids),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and bool(options.get("continuous_usage_stats")),
        echo=fields.get("echo"),
        is_scoring=is_scoring,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        return_token_ids=fields.get("return_token_ids"),
        return_metrics=fields.get("return_metrics"),
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
    if fields.get("use_beam_search"):
        return beam_params(fields, answer, max_tokens=max_tokens)
    values: dict[str, Any] = dict(state.engine.default_sampling)
    values |= {name: fields.get(name) for name in _PASSED_ON if fields.has(name)}
    values |= {
        "logit_bias": _logit_bias(fields),
        "max_tokens": max_tokens,
        "logprobs": None if answer.is_scoring else answer.logprobs,
        "prompt_logprobs": _larger(answer.prompt_logprobs, echoed_logprobs),
        "taps": taps_of(fields),
    }
    return SamplingParams(**values)


def _larger(*counts: int | None) -> int | None:
    return max((count for count in counts if count is not None), default=None)


def _logit_bias(fields: Fields) -> dict[int, Any]:
    """Turn the string keys that JSON needs into ids."""
    bias: dict[int, Any] = {}
    given: Json = fields.get("logit_bias") or {}
    for key, value in given.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 20):
            raise InvalidRequest(f"logit_bias must map token ids, not {cut(key)}", "logit_bias")
        bias[int(key)] = value
    return bias
