"""SamplingParams: how a prompt is to be continued, checked field by field as it is made."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from paged_jax.host.beams import BeamSearchParams
from paged_jax.host.dry import DEFAULT_BREAKERS
from paged_jax.host.field_checks import (
    check_ids,
    check_number,
    check_texts,
    is_number,
    is_text,
    mapping,
    show,
    unique,
)
from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.pooling import PoolingParams
from paged_jax.host.sampling_limits import (
    MAX_ALLOWED_IDS,
    MAX_BAD_WORD_LEN,
    MAX_BAD_WORDS,
    MAX_BIAS_IDS,
    MAX_STOP_IDS,
    MAX_STOP_LEN,
    MAX_STOP_STRINGS,
    RANGES,
)
from paged_jax.host.structured_outputs import StructuredOutputsParams
from paged_jax.host.taps import Taps, check_field

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
        allowed_token_ids: only these are drawn, the end of the sequence too only if listed.
        bad_words: texts whose token sequences, alone or after a space, are not drawn.
        structured_outputs: the form the answer must have.
        xtc_probability: [0, 1]; how often the likeliest tokens, all but one of those that reach
            `xtc_threshold`, are left out, after the other filters.
        xtc_threshold: [0, 0.5] is of use.
        dry_multiplier: 0 is off; a repetition of length k takes this * dry_base **
            (k - dry_allowed_length) off the logit of the token that would go on with it.
        dry_allowed_length: repetitions shorter than this are free.
        dry_sequence_breakers: texts whose last token no repetition reaches across.
        beams: the n answers are found by beam search; made by `beam_sampling`.
        pooling: the prompt's embedding is told with the end of the answer.
        taps: what to read from the layers and to change in them; needs --enable-taps.
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
    allowed_token_ids: tuple[int, ...] | list[int] | None = None
    bad_words: tuple[str, ...] | list[str] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_sequence_breakers: tuple[str, ...] | list[str] = DEFAULT_BREAKERS
    beams: BeamSearchParams | None = None
    pooling: PoolingParams | None = None
    taps: Taps | None = None

    def __post_init__(self) -> None:
        self._normalise()
        for name, (kind, low, high) in RANGES.items():
            check_number(name, getattr(self, name), kind, low, high, optional=name in _OPTIONAL)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(
                    f"{name} must be true or false, not {show(getattr(self, name))}", name
                )
        self._check_stops()
        check_ids("stop_token_ids", self.stop_ids, MAX_STOP_IDS)
        self._check_parts()
        self._check_masks()
        self._check_bias()
        check_field(self.taps, self.n)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})",
                "min_tokens",
            )

    def _normalise(self) -> None:
        """Bring the accepted spellings of a value to one."""
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        self._put("stop", unique("stop", stop))
        self._put("stop_token_ids", unique("stop_token_ids", self.stop_token_ids))
        for name in ("bad_words", "dry_sequence_breakers"):
            self._put(name, unique(name, getattr(self, name)))
        if self.allowed_token_ids is not None:
            self._put("allowed_token_ids", unique("allowed_token_ids", self.allowed_token_ids))
        self._put("logit_bias", mapping("logit_bias", self.logit_bias))
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
            if not is_text(text):
                raise InvalidRequest(f"stop must hold non-empty strings, not {show(text)}", "stop")
            if len(text) > MAX_STOP_LEN:
                raise InvalidRequest(
                    f"a stop string has at most {MAX_STOP_LEN} characters, not {len(text)}", "stop"
                )
        if stops and not self.detokenize:
            raise InvalidRequest("stop strings need detokenize=True", "stop")

    def _check_bias(self) -> None:
        bias = self.logit_bias or {}
        if len(bias) > MAX_BIAS_IDS:
            raise InvalidRequest(
                f"logit_bias takes at most {MAX_BIAS_IDS} ids, not {len(bias)}", "logit_bias"
            )
        for token, value in bias.items():
            if type(token) is not int or token < 0:
                raise InvalidRequest(
                    f"logit_bias must map token ids, not {show(token)}", "logit_bias"
                )
            if not is_number(value, float):
                raise InvalidRequest(
                    f"logit_bias of {token} must be a number, not {show(value)}", "logit_bias"
                )

    def _check_parts(self) -> None:
        """Check that what has fields of its own is of its class."""
        parts = {"structured_outputs": StructuredOutputsParams, "pooling": PoolingParams}
        for name, kind in parts.items():
            value = cast("object", getattr(self, name))
            if value is not None and not isinstance(value, kind):
                raise InvalidRequest(f"{name} must be {kind.__name__}, not {show(value)}", name)

    def _check_masks(self) -> None:
        """Check what forbids ids."""
        allowed, wanted = self.allowed_token_ids, self.structured_outputs
        if allowed is not None:
            check_ids("allowed_token_ids", tuple(allowed), MAX_ALLOWED_IDS)
            if not allowed or wanted is not None:
                problem = "must not be empty" if wanted is None else "excludes structured outputs"
                raise InvalidRequest(f"allowed_token_ids {problem}", "allowed_token_ids")
        for name in ("bad_words", "dry_sequence_breakers"):
            check_texts(name, getattr(self, name), MAX_BAD_WORDS, MAX_BAD_WORD_LEN)

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
        penalty, whether any; number of log-probabilities, -1 for none; XTC's two.
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
            self.xtc_probability,
            self.xtc_threshold,
        )

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken at every position."""
        return self.temperature < GREEDY_BELOW or self.top_p == 0 or self.top_k == 1

    @cached_property
    def reads_output(self) -> bool:
        """Whether a draw depends on the ids drawn before it, other than through the model."""
        own = (self.structured_outputs, self.bad_words, self.dry_multiplier, self.beams)
        return bool(self.has_penalties or any(own))

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether every prompt token is to be computed, so that no cached block may stand in."""
        is_mean = self.pooling is not None and self.pooling.pooling == "mean"
        return is_mean or self.prompt_logprobs is not None or self.taps is not None

    @cached_property
    def has_penalties(self) -> bool:
        """Whether logits depend on the tokens so far."""
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        )


def beam_sampling(search: BeamSearchParams, *, logprobs: int | None = None) -> SamplingParams:
    """Return the parameters of a request for beams.

    Args:
        logprobs: alternatives to be told with each token.
    """
    return SamplingParams(
        n=search.beam_width,
        temperature=0.0,
        max_tokens=search.max_tokens,
        ignore_eos=search.ignore_eos,
        logprobs=logprobs or 0,
        skip_special_tokens=search.skip_special_tokens,
        include_stop_str_in_output=search.include_stop_str_in_output,
        beams=search,
    )


def embedding_sampling(pooling: PoolingParams) -> SamplingParams:
    """Return the parameters of a request for an embedding: it draws one token nobody is told."""
    return SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, pooling=pooling)


_SWITCHES = ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output")
_OPTIONAL = {"seed", "max_tokens", "logprobs", "prompt_logprobs"}
