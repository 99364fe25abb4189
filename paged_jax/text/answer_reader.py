"""What an answer's text is: reasoning first, then content and tool calls."""

from dataclasses import dataclass

from paged_jax.text.reasoning import Part, ReasoningSplitter
from paged_jax.text.tool_calls import CallFormat, ToolCallReader


@dataclass(frozen=True)
class Reading:
    """How the answers to one request are read.

    Attributes:
        is_inside: an answer begins inside the reasoning; None if reasoning is not looked for.
        shows_reasoning: whether the reasoning is told.
        calls: how calls are written; None if they are not looked for.
        names: the functions that may be called; whatever names another is text.
        is_single: only the first call is told.
        is_forced: one of the functions must be called.
        is_named: the one function that may be called was named by the user.
    """

    is_inside: bool | None = None
    shows_reasoning: bool = True
    calls: CallFormat | None = None
    names: tuple[str, ...] = ()
    is_single: bool = False
    is_forced: bool = False
    is_named: bool = False


PLAIN = Reading()


class AnswerReader:
    """Reads one choice, piece by piece.

    Attributes:
        has_calls: a call was told.
    """

    def __init__(self, reading: Reading):
        self._reading = reading
        is_inside = reading.is_inside
        self._splitter = None if is_inside is None else ReasoningSplitter(is_inside=is_inside)
        self._calls = None if reading.calls is None else ToolCallReader(*_spelling(reading))
        self.has_calls = False

    def read(self, text: str, *, is_last: bool) -> list[Part]:
        """Return what `text` adds, each kind in one part; `is_last` ends the answer."""
        split = [Part("content", text)] if text else []
        if self._splitter is not None:
            split = self._splitter.feed(text) + (self._splitter.finish() if is_last else [])
        parts: list[Part] = []
        for part in split:
            if part.kind == "reasoning":
                parts += [part] if self._reading.shows_reasoning else []
            else:
                parts += self._content(part.text)
        if is_last and self._calls is not None:
            parts += self._told(self._calls.finish())
        return _merged(parts)

    def _content(self, text: str) -> list[Part]:
        return (
            [Part("content", text)] if self._calls is None else self._told(self._calls.feed(text))
        )

    def _told(self, parts: list[Part]) -> list[Part]:
        kept = [part for part in parts if not (self._reading.is_single and part.call > 0)]
        self.has_calls |= any(part.kind == "call" for part in kept)
        return kept


def _spelling(reading: Reading) -> tuple[CallFormat, tuple[str, ...]]:
    assert reading.calls is not None, "calls are not looked for"
    return reading.calls, reading.names


def _merged(parts: list[Part]) -> list[Part]:
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if last is not None and (last.kind, last.call) == (part.kind, part.call):
            merged[-1] = Part(part.kind, last.text + part.text, part.call)
        else:
            merged.append(part)
    return merged
