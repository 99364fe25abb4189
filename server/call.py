"""One request of a client, checked: what `protocol` makes of a body and `generation` runs."""

import re
from dataclasses import dataclass, field
from typing import Any

from paged_jax.host.sampling_params import SamplingParams
from paged_jax.text.answer_reader import PLAIN, Reading
from server.logprobs import TokenSpelling
from server.wire import Json


@dataclass(frozen=True)
class Prompt:
    """One prompt. `echo` is the text that goes before each answer; empty unless asked for."""

    ids: tuple[int, ...]
    echo: str = ""


@dataclass(frozen=True)
class AnswerOptions:
    """How the answer is to look.

    Attributes:
        include_usage: a stream ends with a chunk of usage figures.
        continuous_usage: every chunk of a stream has usage figures.
        echo: the prompt goes before the answer.
        is_scoring: the prompt alone matters; the one token the engine makes is dropped.
        logprobs: alternatives per position; None is off.
        prompt_logprobs: the same for the prompt's positions, in vLLM's shape.
        return_token_ids: the ids of prompt and answer are listed.
        return_metrics: the request's times are told with the usage.
        as_base64: embeddings are spelled as bytes.
        reading: how the text is told apart into reasoning, content and calls.
        think_ids: the tokens that open and close a reasoning, to count it; None if there are none.
    """

    spell: TokenSpelling
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    echo: bool = False
    is_scoring: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool = False
    return_metrics: bool = False
    as_base64: bool = False
    reading: Reading = PLAIN
    think_ids: tuple[int, int] | None = None


@dataclass(frozen=True)
class Call:
    """All that is needed to run and answer a request; choice i of prompt p has index p * n + i.

    Attributes:
        told: fields of the request that the answer repeats.
        trace: headers that say which trace it belongs to; empty if spans are not made.
    """

    id: str
    created: int
    model: str
    prompts: tuple[Prompt, ...]
    params: SamplingParams
    answer: AnswerOptions
    priority: int = 0
    cache_salt: str | None = None
    told: Json = field(default_factory=dict[str, Any])
    trace: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def client_id(self) -> str:
        """The id without the kind of answer before it."""
        return re.split("[-_]", self.id, maxsplit=1)[1]
