"""SamplingParams: how a prompt is to be continued, checked field by field as it is made."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeGuard, cast

from paged_jax.host.invalid_request import InvalidRequest

MAX_N = 128
MAX_STOP_STRINGS = 4
MAX_STOP_LEN = 1024
MAX_STOP_IDS = 1024
MAX_BIAS_IDS = 1024
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to continue a prompt; fields, defaults and meaning are vLLM's.

    Raises InvalidRequest (a ValueError) that names the field when a value is out of its range.

    Attributes:
        n: choices per prompt; with greedy decoding they are equal.
        presence_penalty: subtracted from the logit of every token already in the output; [-2, 2].
        frequency_penalty: the same, times how often; [-2, 2].
        repetition_penalty: > 0; divides (multiplies) positive (negative) logits of prompt and
            output tokens.
        temperature: [0, 2]; below 1e-5 is greedy.
        top_p: [0, 1]; 0 is greedy.
        top_k: 0 or -1 is off.
        min_p: [0, 1]; drop tokens less likely than this share of the likeliest.
        seed: fixes the draws of this request whatever its batch mates; choice i uses seed + i.
        stop: strings that end generation; not part of the text unless `include_stop_str_in_output`.
        stop_token_ids: ids that end generation, also under `ignore_eos`.
        ignore_eos: the model's end-of-sequence ids do not end generation.
        max_tokens: answer length; None fills the context.
        min_tokens: no end before this many tokens.
        logprobs: None is off; k lists the chosen token and the k likeliest, from the raw logits.
        prompt_logprobs: the same for the prompt's tokens; such a request does not read the prefix
            cache.
        logit_bias: added to the logits of these ids, clamped to [-100, 100].
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] | list[str] | str | None = None
    stop_token_ids: tuple[int, ...] | list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        self._normalise()
        for name, (kind, low, high) in RANGES.items():
            _check_number(name, getattr(self, name), kind, low, high, optional=name in _OPTIONAL)
        for name in (
            "ignore_eos",
            "detokenize",
            "skip_special_tokens",
            "include_stop_str_in_output",
        ):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(
                    f"{name} must be true or false, not {_show(getattr(self, name))}", name
                )
        self._check_stops()
        self._check_stop_ids()
        self._check_bias()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})",
                "min_tokens",
            )

    def _normalise(self) -> None:
        """Bring the accepted spellings of a value to one."""
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        self._put("stop", _unique("stop", stop))
        self._put("stop_token_ids", _unique("stop_token_ids", self.stop_token_ids))
        self._put("logit_bias", _mapping("logit_bias", self.logit_bias))
        if self.top_k == -1:
            self._put("top_k", 0)
        if self.seed == -1:
            self._put("seed", None)
        for name in ("logprobs", "prompt_logprobs"):
            if isinstance(getattr(self, name), bool):
                self._put(name, 1 if getattr(self, name) else None)

    def _put(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_stops(self) -> None:
        stops = self.stop_strings
        if len(stops) > MAX_STOP_STRINGS:
            raise InvalidRequest(
                f"stop takes at most {MAX_STOP_STRINGS} strings, not {len(stops)}", "stop"
            )
        for text in stops:
            if not _is_text(text):
                raise InvalidRequest(f"stop must hold non-empty strings, not {_show(text)}", "stop")
            if len(text) > MAX_STOP_LEN:
                raise InvalidRequest(
                    f"a stop string has at most {MAX_STOP_LEN} characters, not {len(text)}", "stop"
                )
        if stops and not self.detokenize:
            raise InvalidRequest("stop strings need detokenize=True", "stop")

    def _check_stop_ids(self) -> None:
        ids = self.stop_ids
        if len(ids) > MAX_STOP_IDS:
            raise InvalidRequest(
                f"stop_token_ids takes at most {MAX_STOP_IDS} ids, not {len(ids)}", "stop_token_ids"
            )
        for token in ids:
            if type(token) is not int or token < 0:
                raise InvalidRequest(
                    f"stop_token_ids must hold token ids, not {_show(token)}", "stop_token_ids"
                )

    def _check_bias(self) -> None:
        bias = self.logit_bias or {}
        if len(bias) > MAX_BIAS_IDS:
            raise InvalidRequest(
                f"logit_bias takes at most {MAX_BIAS_IDS} ids, not {len(bias)}", "logit_bias"
            )
        for token, value in bias.items():
            if type(token) is not int or token < 0:
                raise InvalidRequest(
                    f"logit_bias must map token ids, not {_show(token)}", "logit_bias"
                )
            if not _is_number(value, float):
                raise InvalidRequest(
                    f"logit_bias of {token} must be a number, not {_show(value)}", "logit_bias"
                )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, always a tuple."""
        return tuple(self.stop or ())

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """The user's own stop ids, always a tuple."""
        return tuple(self.stop_token_ids or ())

    @cached_property
    def settings(self) -> tuple[float, ...]:
        """What a draw needs, as numbers, in the order in which `device.sampling_rows` reads them.

        Temperature, top_k, top_p, min_p, whether greedy; repetition, presence and frequency
        penalty, whether any; number of log-probabilities, -1 for none.
        """
        return (
            self.temperature,
            min(self.top_k, 2**31 - 1),
            self.top_p,
            self.min_p,
            self.is_greedy,
            self.repetition_penalty,
            self.presence_penalty,
            self.frequency_penalty,
            self.has_penalties,
            -1 if self.logprobs is None else self.logprobs,
        )

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken at every position."""
        return self.temperature < GREEDY_BELOW or self.top_p == 0 or self.top_k == 1

    @cached_property
    def has_penalties(self) -> bool:
        """Whether logits depend on the tokens so far."""
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        )


_INT64 = 1 << 63
# Kind and bounds of every numeric field; the HTTP side publishes the same.
RANGES: dict[str, tuple[type, float, float]] = {
    "n": (int, 1, MAX_N),
    "presence_penalty": (float, -2, 2),
    "frequency_penalty": (float, -2, 2),
    "repetition_penalty": (float, 1e-6, 1e6),
    "temperature": (float, 0, 2),
    "top_p": (float, 0, 1),
    "top_k": (int, 0, _INT64),
    "min_p": (float, 0, 1),
    "seed": (int, -_INT64, _INT64 - 1),
    "max_tokens": (int, 1, _INT64),
    "min_tokens": (int, 0, _INT64),
    "logprobs": (int, 0, _INT64),
    "prompt_logprobs": (int, 0, _INT64),
}
_OPTIONAL = {"seed", "max_tokens", "logprobs", "prompt_logprobs"}


def _check_number(
    name: str, value: object, kind: type, low: float, high: float, *, optional: bool
) -> None:
    """Raise InvalidRequest unless value is a finite number of `kind` in [low, high]."""
    if value is None and optional:
        return
    if not _is_number(value, kind):
        wanted = "a whole number" if kind is int else "a finite number"
        raise InvalidRequest(f"{name} must be {wanted}, not {_show(value)}", name)
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be between {low} and {high}, not {_show(value)}", name)


def _is_number(value: object, kind: type) -> TypeGuard[float]:
    """Whether value is a whole number, or, where `kind` is float, any finite one."""
    return type(value) is int or (kind is float and type(value) is float and math.isfinite(value))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _unique(name: str, values: object) -> tuple[object, ...]:
    """The values of a list in order, each once; None is an empty list."""
    if values is None:
        return ()
    if isinstance(values, list | tuple):
        try:
            return tuple(dict.fromkeys(cast("list[object]", values)))
        except TypeError:  # a value that cannot be hashed: a list, an object
            pass
    shown = _show(cast("object", values))
    raise InvalidRequest(f"{name} must be a list of plain values, not {shown}", name)


def _mapping(name: str, value: object) -> dict[object, object]:
    """A copy of a mapping; None is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} must map keys to values, not {_show(value)}", name)
    return dict(cast("Mapping[object, object]", value))


def _show(value: object) -> str:
    """A short repr for error messages: large inputs are never echoed."""
    text = repr(value)[:200]
    return text if len(text) < 80 else text[:77] + "..."
