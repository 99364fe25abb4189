"""Which ids a request may draw next, as bit masks: a grammar, allowed ids, forbidden words.

A mask is a function of the request and the ids it has drawn, made anew for each draw; so nothing
can be left stale by preemption, forks or changes of the batch. Where the rules leave nothing, the
grammar (or the list of allowed ids) outlives the forbidden words and the minimum length.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import numpy as np

from paged_jax.config import ModelConfig
from paged_jax.device.sampling_rows import Draw, Masks
from paged_jax.host.request import Request, Sequence
from paged_jax.host.sampling_params import SamplingParams
from paged_jax.text.grammar import Grammar, GrammarCompiler, GrammarState
from paged_jax.text.tokenizer import Tokenizer


@dataclass
class TokenRules:
    """The rules of one request.

    Attributes:
        base: [words] uint32, the ids that may be drawn whatever came before.
        bad_words: id sequences that must not occur.
        begun: ids at the end of the prompt that belong to the answer.
        states: where each choice is in the grammar.
    """

    base: np.ndarray
    grammar: Grammar | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    begun: tuple[int, ...] = ()
    states: dict[int, GrammarState] = field(default_factory=dict)

    def state(self, choice: int, output: Seq[int]) -> GrammarState:
        """Return where `choice` is in the grammar after `output`."""
        assert self.grammar is not None, "there is no grammar to be followed"
        if choice not in self.states:
            self.states[choice] = self.grammar.begin()
        self.states[choice].advance((*self.begun, *output))
        return self.states[choice]

    def narrow(self, mask: np.ndarray, sequence: Sequence) -> None:
        """Take out of `mask` what must not follow, unless nothing would be left."""
        request, params = sequence.request, sequence.request.sampling
        banned = set(_completing(self.bad_words, (*self.begun, *sequence.output)))
        if len(sequence.output) < params.min_tokens:
            banned.update((*request.eos_ids, *params.stop_ids))
        narrowed = mask & ~bits(banned, len(mask))
        if narrowed.any():
            mask[:] = narrowed


def _completing(words: Iterable[tuple[int, ...]], output: Seq[int]) -> list[int]:
    """The ids that would complete one of `words`."""
    return [
        word[-1]
        for word in words
        if len(word) == 1 or tuple(output[len(output) - len(word) + 1 :]) == word[:-1]
    ]


def bits(ids: Iterable[int], num_words: int) -> np.ndarray:
    """Return a mask of `ids`; bit b of word w is id 32 w + b."""
    flags = np.zeros(num_words * 32, np.uint8)
    flags[list(ids)] = 1
    return np.packbits(flags, bitorder="little").view(np.uint32)


def spellings(word: str, tokenizer: Tokenizer) -> list[list[int]]:
    """Return the ids of a word at the beginning of a text, and after a space."""
    texts = [word, " " + word.lstrip()]
    spelled = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    return [ids for ids in spelled if ids]


def with_breakers(request: Request, tokenizer: Tokenizer) -> Request:
    """Return the request with the last token of each text that DRY does not reach across."""
    params = request.sampling
    if not params.dry_multiplier:
        return request
    spelled = [
        tokenizer.encode("a" + text, add_special_tokens=False)
        for text in params.dry_sequence_breakers
    ]
    return replace(request, breaker_ids=frozenset(ids[-1] for ids in spelled))


class RuleBook:
    """The rules of the live requests.

    Attributes:
        compiler: makes the grammars.
    """

    def __init__(self, model: ModelConfig, tokenizer: Tokenizer):
        self._model, self._tokenizer = model, tokenizer
        self._rules: dict[str, TokenRules] = {}
        self.compiler = GrammarCompiler(
            tokenizer, vocab_size=model.vocab_size, eos_ids=model.eos_token_ids
        )

    def compile(self, params: SamplingParams) -> Grammar | None:
        """Return the grammar a request wants; raises as `GrammarCompiler.compile`."""
        wanted = params.structured_outputs
        return None if wanted is None else self.compiler.compile(wanted)

    def add(
        self, request: Request, grammar: Grammar | None, *, begun: tuple[int, ...] = ()
    ) -> None:
        """Note what a request may draw, unless that is every id.

        Args:
            begun: ids at the end of its prompt that belong to the answer.
        """
        params, model = request.sampling, self._model
        if grammar is None and not params.allowed_token_ids and not params.bad_words:
            return
        allowed = params.allowed_token_ids or range(model.vocab_limit or model.vocab_size)
        spelled = (spellings(word, self._tokenizer) for word in params.bad_words or ())
        bad_words = tuple(tuple(ids) for both in spelled for ids in both)
        base = bits(allowed, -(-model.vocab_size // 32))
        self._rules[request.id] = TokenRules(base, grammar, bad_words, begun)

    def begun(self, request_id: str) -> tuple[int, ...]:
        """Return the ids at the end of a request's prompt that belong to its answer."""
        return self._rules[request_id].begun if request_id in self._rules else ()

    def drop(self, request_id: str) -> None:
        """Forget an ended request."""
        self._rules.pop(request_id, None)

    def masks(self, drawn: Seq[Draw]) -> tuple[Masks, dict[str, str]]:
        """Return the mask of each row that has rules, and the requests whose grammar failed."""
        ruled = [
            (row, sequence, choice, self._rules[sequence.request.id])
            for row, (sequence, choice) in enumerate(drawn)
            if sequence.request.id in self._rules
        ]
        if not ruled:
            return {}, {}
        masks = np.stack([rule.base for *_, rule in ruled])
        states = [
            (rule.state(choice, sequence.output), at)
            for at, (_, sequence, choice, rule) in enumerate(ruled)
            if rule.grammar is not None
        ]
        if states:
            self.compiler.fill(states, masks)
        failed = {ruled[at][1].request.id: state.error for state, at in states if state.error}
        for mask, (_, sequence, _, rule) in zip(masks, ruled, strict=True):
            rule.narrow(mask, sequence)
        return {row: mask for mask, (row, *_) in zip(masks, ruled, strict=True)}, failed
