"""Grammars for structured answers: compiled once, then followed token by token.

The compiler and the walk over the vocabulary are llguidance's. Compiling happens in threads of its
own, in a limited time, never in the engine's step loop; what is refused is an InvalidRequest. A
state is a function of the grammar and the ids drawn so far, so it can be made again at any time.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from threading import Lock
from typing import Any

import llguidance
import numpy as np
from llguidance.numpy import fill_next_token_bitmask_par

from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.structured_outputs import StructuredOutputsParams
from paged_jax.text.tokenizer import Tokenizer

COMPILE_S = 5.0
NUM_THREADS = 2
NUM_CACHED = 128
MAX_ERROR_LEN = 300
# What goes before the answer of a model that reasons first.
_AFTER_REASONING = {
    False: "start: (OPENED rest)? /\\s*/ @answer\nOPENED: /\\s*<think>/\n",
    True: "start: rest /\\s*/ @answer\n",
}
_REST = "rest[lazy]: /(.|\\n)*<\\/think>/\n"


class GrammarState:
    """Where in its grammar one answer is."""

    def __init__(self, matcher: llguidance.LLMatcher):
        self.matcher = matcher
        self._num_read = 0

    def advance(self, output: Sequence[int]) -> None:
        """Take the ids of `output`, all there are, that were not taken yet."""
        if len(output) < self._num_read:
            self.matcher.reset()
            self._num_read = 0
        for token in output[self._num_read :]:
            if self.matcher.is_stopped():  # only ends of the sequence are left
                break
            self.matcher.consume_token(token)
        self._num_read = len(output)

    @property
    def error(self) -> str:
        """Why the grammar cannot be followed further; empty while it can."""
        return self.matcher.get_error()


class Grammar:
    """A compiled grammar; threads may share it."""

    def __init__(self, matcher: llguidance.LLMatcher):
        self._matcher = matcher

    def begin(self) -> GrammarState:
        """Return the state before the first token."""
        return GrammarState(self._matcher.deep_copy())


class GrammarCompiler:
    """Compiles the grammars of one model, and keeps the last of them."""

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, eos_ids: Sequence[int]):
        self._tokenizer, self._vocab_size, self._eos_ids = tokenizer, vocab_size, list(eos_ids)
        self._cache: OrderedDict[StructuredOutputsParams, Grammar] = OrderedDict()
        self._lock = Lock()
        self._workers = ThreadPoolExecutor(NUM_THREADS, "grammar")

    def compile(self, wanted: StructuredOutputsParams) -> Grammar:
        """Return the grammar of the form wanted. Blocks; any thread may call it.

        Raises:
            InvalidRequest: it is wrong, not supported, too complex, or takes too long.
        """
        with self._lock:
            if wanted in self._cache:
                self._cache.move_to_end(wanted)
                return self._cache[wanted]
        task = self._workers.submit(self._compile, wanted)
        try:
            grammar = task.result(timeout=COMPILE_S)
        except TimeoutError:
            task.cancel()
            raise _refusal(wanted, f"took longer than {COMPILE_S:g} s; make it simpler") from None
        with self._lock:
            self._cache[wanted] = grammar
            while len(self._cache) > NUM_CACHED:
                self._cache.popitem(last=False)
        return grammar

    def fill(self, states: Sequence[tuple[GrammarState, int]], masks: np.ndarray) -> None:
        """Write into row i of `masks` which ids may follow each (state, i).

        Args:
            masks: [rows words] uint32, contiguous; bit b of word w is id 32 w + b.
        """
        pairs = [(state.matcher, row) for state, row in states]
        fill_next_token_bitmask_par(self._executor, pairs, masks.view(np.int32))

    def _compile(self, wanted: StructuredOutputsParams) -> Grammar:
        if not self._eos_ids:
            raise _refusal(wanted, "needs a model with an end-of-sequence token")
        try:
            source = source_of(wanted)
        except (ValueError, RecursionError) as error:
            raise _refusal(wanted, str(error)) from None
        matcher = llguidance.LLMatcher(self._vocabulary, source, log_level=0)
        if matcher.is_error():
            raise _refusal(wanted, matcher.get_error())
        return Grammar(matcher)

    @cached_property
    def _executor(self) -> llguidance.LLExecutor:
        return llguidance.LLExecutor(NUM_THREADS)

    @cached_property
    def _vocabulary(self) -> llguidance.LLTokenizer:
        plain = _Vocabulary(self._tokenizer, self._vocab_size, self._eos_ids[0])
        wrapped = llguidance.TokenizerWrapper(plain)
        return llguidance.LLTokenizer(wrapped, eos_token=self._eos_ids)


class _Vocabulary:
    """A tokenizer as llguidance reads one; ids of the model without a token are empty."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_id: int):
        self._tokenizer = tokenizer
        self.eos_token_id, self.bos_token_id = eos_id, tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(index) for index in range(vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode(errors="replace"), add_special_tokens=False)


def source_of(wanted: StructuredOutputsParams) -> str:
    """Return llguidance's own form of a grammar.

    Raises:
        ValueError: the grammar's notation is wrong.
    """
    if wanted.kind in ("json", "json_object"):
        source = llguidance.LLMatcher.grammar_from_json_schema(_schema(wanted))
    elif wanted.kind == "choice":
        source = llguidance.grammar_from("choice", json.dumps(wanted.choice))
    else:
        kind = "regex" if wanted.kind == "regex" else "grammar"
        source = llguidance.grammar_from(kind, str(getattr(wanted, wanted.kind)))
    if wanted.after_reasoning is None:
        return source
    before = {"lark_grammar": _AFTER_REASONING[wanted.after_reasoning] + _REST}
    (answer,) = json.loads(source)["grammars"] if source.startswith("{") else [_lark(source)]
    return json.dumps({"grammars": [before, {**answer, "name": "answer"}]})


def _lark(source: str) -> dict[str, str]:
    return {"lark_grammar": source}


def _schema(wanted: StructuredOutputsParams) -> dict[str, Any]:
    schema = {"type": "object"} if wanted.json_object else json.loads(str(wanted.json))
    if wanted.disable_additional_properties:
        schema = _closed(schema)
    options: dict[str, object] = {}
    if wanted.disable_any_whitespace:
        options["whitespace_flexible"] = False
    elif wanted.whitespace_pattern is not None:
        options["whitespace_pattern"] = wanted.whitespace_pattern
    return schema | ({"x-guidance": options} if options else {})


def _closed(schema: Any) -> Any:
    """The schema with objects that have no properties but those named."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    is_object = isinstance(schema.get("properties"), dict)
    return {"additionalProperties": False, **closed} if is_object else closed


def _refusal(wanted: StructuredOutputsParams, reason: str) -> InvalidRequest:
    """The error in one line that says what is wrong with the user's form."""
    text = " ".join(reason.split())[:MAX_ERROR_LEN]
    return InvalidRequest(f"{wanted.named}: the {wanted.kind} is refused: {text}", wanted.named)
