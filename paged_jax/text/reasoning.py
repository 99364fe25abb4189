"""Tells a model's reasoning, `<think>...</think>`, from its answer, wherever the pieces are cut.

White space next to the marks belongs to neither (up to 64 characters of it, so that the cost of a
piece does not depend on what came before).
"""

from dataclasses import dataclass
from typing import Literal

OPENING, CLOSING = "<think>", "</think>"
MAX_HELD_SPACE = 64
# Parsers by name, and whether an answer without marks is taken for reasoning.
REASONING_PARSERS = {"deepseek_r1": True, "qwen3": False}
PartKind = Literal["reasoning", "content", "call", "arguments"]


@dataclass(frozen=True)
class Part:
    """A piece of an answer.

    Attributes:
        text: of a "call", the function's name; of "arguments", more of its JSON.
        call: which call a "call" or "arguments" belongs to, from 0.
    """

    kind: PartKind
    text: str
    call: int = 0


def opens_reasoning(prompt: str) -> bool | None:
    """Return whether an answer to `prompt` begins inside (or behind) a reasoning; None if open."""
    end = prompt[-256:].rstrip()
    if end.endswith(OPENING):
        return True
    return False if end.endswith(CLOSING) else None


def split_space(text: str) -> int:
    """Return where the white space begins that ends `text`, at most 64 characters of it."""
    return len(text) - len(text[-MAX_HELD_SPACE:]) + len(text[-MAX_HELD_SPACE:].rstrip())


def held_len(text: str, mark: str) -> int:
    """Return the length of the longest end of `text` that `mark` begins with."""
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((length for length in lengths if mark.startswith(text[-length:])), 0)


class ReasoningSplitter:
    """Splits one answer.

    Attributes:
        is_inside: what comes next is reasoning.
    """

    def __init__(self, *, is_inside: bool):
        self.is_inside = is_inside
        self._is_at_start, self._drops_space, self._held = True, is_inside, ""

    def feed(self, text: str) -> list[Part]:
        """Return what can be told of the answer so far, and was not told yet."""
        self._held += text
        if self._is_at_start and not self._begin():
            return []
        reasoning = self._take(self._reasoning_len()) if self.is_inside else ""
        parts = [Part("reasoning", reasoning)] if reasoning else []
        self._read_closing()
        content = "" if self.is_inside else self._take(len(self._held))
        return [*parts, Part("content", content)] if content else parts

    def finish(self) -> list[Part]:
        """Return what was held back; the answer is over."""
        text = self._take(split_space(self._held) if self.is_inside else len(self._held))
        return [Part("reasoning" if self.is_inside else "content", text)] if text else []

    def _begin(self) -> bool:
        """Whether it is clear what the answer begins with."""
        begun = self._held.lstrip()
        if begun.startswith(OPENING):
            self._held, self.is_inside = begun.removeprefix(OPENING), True
            self._drops_space = True
        elif OPENING.startswith(begun) and len(self._held) < MAX_HELD_SPACE:
            return False
        self._is_at_start = False
        return True

    def _take(self, count: int) -> str:
        """Take so many characters, without the white space that follows a mark."""
        text, self._held = self._held[:count], self._held[count:]
        if self._drops_space:
            text = text.lstrip()
            self._drops_space = not text
        return text

    def _reasoning_len(self) -> int:
        """Return how much of the text is reasoning for certain."""
        end = self._held.find(CLOSING)
        if end < 0:
            end = len(self._held) - held_len(self._held, CLOSING)
        return split_space(self._held[:end])

    def _read_closing(self) -> None:
        if self.is_inside and (begun := self._held.lstrip()).startswith(CLOSING):
            self._held = begun.removeprefix(CLOSING)
            self.is_inside, self._drops_space = False, True
