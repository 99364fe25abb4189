"""Finds tool calls in a model's answer while it is written, in the formats that models are taught.

What is a call is told the same way wherever the text is cut; what looked like one and is none stays
text. Formats: Hermes and Qwen (`<tool_call>{...}</tool_call>`), Llama 3 (`{...}; {...}`), Mistral
(`[TOOL_CALLS][{...}, {...}]` and `[TOOL_CALLS]name{...}`).
"""

from collections.abc import Collection
from dataclasses import dataclass

from paged_jax.text.call_scanner import CallScanner
from paged_jax.text.reasoning import MAX_HELD_SPACE, Part, PartKind, held_len, split_space

SPACE = " \t\r\n"
MAX_HEADER_LEN = 256  # what Mistral writes between a mark and the arguments


@dataclass(frozen=True)
class CallFormat:
    """How a family of models writes calls.

    Attributes:
        opening: what calls begin with.
        closing: what ends one call; then the text goes on.
        separators: what may stand between calls.
        needs_opening: if not, an answer whose first character is `{` is taken for calls.
        has_headers: the name may stand before the arguments.
        has_special_marks: the marks are special tokens, which must not be left out of the text.
        id_len: length of a call's id; templates of some models insist on one.
    """

    opening: str
    closing: str = ""
    separators: str = SPACE
    needs_opening: bool = True
    has_headers: bool = False
    has_special_marks: bool = False
    id_len: int = 24


TOOL_CALL_PARSERS = {
    "hermes": CallFormat("<tool_call>", "</tool_call>"),
    "llama3_json": CallFormat(
        "<|python_tag|>", separators=SPACE + ";", needs_opening=False, has_special_marks=True
    ),
    "mistral": CallFormat(
        "[TOOL_CALLS]",
        separators=SPACE + ",[]",
        has_headers=True,
        has_special_marks=True,
        id_len=9,
    ),
}


class ToolCallReader:
    """Reads one answer.

    Attributes:
        num_calls: calls that have begun.
    """

    def __init__(self, spelling: CallFormat, names: Collection[str]):
        self._format, self._names = spelling, frozenset(names)
        self._held = ""  # not yet read
        self._read: list[str] = []  # read since the text ended; text again if it is no call
        self._scanner: CallScanner | None = None
        self._is_in_text = self._is_at_start = True
        self._has_call = False  # since the text ended
        self._parts: list[Part] = []
        self.num_calls = 0

    def feed(self, text: str) -> list[Part]:
        """Return what can be told of the answer so far, and was not told yet."""
        self._held += text
        while self._held and self._advance():
            pass
        return self._take_parts()

    def finish(self) -> list[Part]:
        """Return what was held back; the answer is over."""
        text = ("" if self._has_call else "".join(self._read)) + self._held
        is_told = self._scanner is not None and self._scanner.is_open
        is_rest = self.num_calls > 0 and not text.strip(self._format.separators)
        if not is_told and not is_rest:
            self._tell("content", text)
        self._held, self._read = "", []
        return self._take_parts()

    def _take_parts(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def _tell(self, kind: PartKind, text: str) -> None:
        if text:
            call = 0 if kind == "content" else self.num_calls - 1
            self._parts.append(Part(kind, text, call))

    def _advance(self) -> bool:
        """Read on; whether something was read that lets the rest be looked at."""
        if self._scanner is not None:
            return self._read_call(self._scanner)
        return self._read_text() if self._is_in_text else self._read_between()

    def _read_text(self) -> bool:
        """Tell text up to the next mark, without the white space before it."""
        begun = self._held.lstrip()
        is_close = len(self._held) - len(begun) < MAX_HELD_SPACE
        if self._is_at_start and is_close and not self._format.needs_opening:
            if begun[:1] == "{":
                return self._leave_text(0, 0)
            if not begun:
                return False
        opening = self._format.opening
        found = self._held.find(opening)
        if found >= 0:
            return self._leave_text(found, len(opening))
        end = split_space(self._held[: len(self._held) - held_len(self._held, opening)])
        self._is_at_start &= not end
        self._tell("content", self._held[:end])
        self._held = self._held[end:]
        return False

    def _leave_text(self, found: int, mark_len: int) -> bool:
        """Go on behind a mark, or behind nothing where none is needed."""
        end = split_space(self._held[:found])
        self._tell("content", self._held[:end])
        self._read = [self._held[end : found + mark_len]]
        self._held = self._held[found + mark_len :]
        self._is_in_text = self._is_at_start = self._has_call = False
        return True

    def _read_between(self) -> bool:
        """Read marks and separators up to the next call."""
        for mark in (self._format.opening, self._format.closing):
            if mark and self._held.startswith(mark):
                self._skip(len(mark))
                return mark == self._format.opening or self._return_to_text()
            if mark.startswith(self._held):
                return False
        first = self._held[0]
        if first in self._format.separators:
            return self._skip(1)
        if first == "{":
            self._scanner = CallScanner(self._names)
            return True
        return self._read_header() if self._format.has_headers else self._return_to_text()

    def _skip(self, count: int) -> bool:
        self._read.append(self._held[:count])
        self._held = self._held[count:]
        return True

    def _read_header(self) -> bool:
        """Read `name`, `name[ARGS]` or `name[CALL_ID]id[ARGS]` before arguments."""
        header, brace, _ = self._held[: MAX_HEADER_LEN + 1].partition("{")
        if not brace:
            return len(header) > MAX_HEADER_LEN and self._return_to_text()
        name = header.partition("[")[0].strip()
        if name not in self._names:
            return self._return_to_text()
        self._scanner = CallScanner(self._names, name=name)
        return self._skip(len(header))

    def _read_call(self, scanner: CallScanner) -> bool:
        was_open, num_read = scanner.is_open, 0
        for character in self._held:
            scanner.take(character)
            if scanner.is_broken:  # what breaks a call is not part of it
                break
            num_read += 1
            if scanner.is_done:
                break
        self._skip(num_read)
        if scanner.is_open:
            self._tell_call(scanner, is_new=not was_open)
        if scanner.is_broken or scanner.is_done:
            self._scanner = None
        return scanner.is_open or not scanner.is_broken or self._return_to_text()

    def _tell_call(self, scanner: CallScanner, *, is_new: bool) -> None:
        if is_new:
            self.num_calls += 1
            self._has_call = True
            self._tell("call", scanner.name or "")
        self._tell("arguments", scanner.take_arguments())

    def _return_to_text(self) -> bool:
        """Go on with text; what was read is text too if it holds no call."""
        if not self._has_call:
            self._tell("content", "".join(self._read))
        self._read, self._is_in_text = [], True
        return True
