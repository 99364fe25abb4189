"""Follows one tool call that a model writes as JSON, character by character.

Model output is untrusted: nothing is evaluated, every character costs the same, and what is no call
is given back as text. The arguments are passed on as the model wrote them, while it writes them.
"""

import json
from collections.abc import Collection

MAX_DEPTH = 64
MAX_HEAD_LEN = 1024  # characters of a key or a name
ARGUMENT_KEYS = ("arguments", "parameters")
KEYS = ("name", "type", "id", *ARGUMENT_KEYS)
_JSON_CHARACTERS = frozenset("{}[]:,+-.0123456789eEaflnrstu \t\r\n")


class JsonCursor:
    """Knows how deep in a JSON text, and whether in a string, the last character was."""

    def __init__(self) -> None:
        self.depth, self.is_in_string, self._is_escaped = 0, False, False

    def take(self, character: str) -> bool:
        """Move on; return False for what no JSON text has at such a place."""
        if self.is_in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif character == "\\":
                self._is_escaped = True
            else:
                self.is_in_string = character != '"'
            return True
        if character == '"':
            self.is_in_string = True
        elif character in "{[":
            self.depth += 1
        elif character in "}]":
            self.depth -= 1
        elif character not in _JSON_CHARACTERS:
            return False
        return 0 <= self.depth <= MAX_DEPTH


class CallScanner:
    """Reads `{"name": ..., "arguments": {...}}`, or the arguments alone where the name is known.

    Attributes:
        name: the function's name, once it is known.
        is_done: the call is complete.
        is_broken: this is no call, or the call ends in the middle.
    """

    def __init__(self, names: Collection[str], *, name: str | None = None):
        self._names, self.name = names, name
        self._is_bare = name is not None
        self._cursor = JsonCursor()
        self._cursor.depth = int(self._is_bare)
        self._key = "arguments" if self._is_bare else None
        self._value: list[str] = []  # characters of the key or value being read
        self._fresh: list[str] = []  # arguments that nobody has taken yet
        self._is_streaming = self._has_arguments = False
        self.is_done = self.is_broken = False

    @property
    def is_open(self) -> bool:
        """Whether this is a call for certain: name and arguments have begun."""
        return self.name is not None and (self._is_streaming or self._has_arguments)

    def take(self, character: str) -> None:
        """Read one character; the first of a call is `{`."""
        cursor = self._cursor
        before, was_top = cursor.depth, cursor.depth == 1 and not cursor.is_in_string
        if not cursor.take(character):
            self.is_broken = True
        elif max(before, cursor.depth) > 1:
            self._take_inner(character)
            if self._is_bare and cursor.depth == 1:
                self._end()
        elif cursor.depth == 0:
            self._end()
        elif was_top and character == ":" and self._key is None:
            self._end_key()
        elif was_top and character == ",":
            self._end_value()
        elif before == 1:
            self._add(character)

    def take_arguments(self) -> str:
        """Return the arguments read since the last call."""
        text = "".join(self._fresh)
        self._fresh.clear()
        return text

    def _take_inner(self, character: str) -> None:
        """Read a character of a structure; the arguments go on at once if their name is known."""
        is_known = self._key in ARGUMENT_KEYS and self.name is not None
        if is_known and character == "{" and not self._value:
            self._is_streaming = True
        if self._is_streaming:
            self._fresh.append(character)
        else:
            self._add(character)

    def _add(self, character: str) -> None:
        if character.isspace() and (self._is_streaming or not self._value):
            return
        self._value.append(character)
        self.is_broken |= self._key not in ARGUMENT_KEYS and len(self._value) > MAX_HEAD_LEN

    def _end_key(self) -> None:
        self._key = _text_of("".join(self._value))
        self._value = []
        is_again = (self._key == "name" and self.name is not None) or (
            self._key in ARGUMENT_KEYS and self._has_arguments
        )
        self.is_broken |= self._key not in KEYS or is_again

    def _end_value(self) -> None:
        written, key = "".join(self._value).strip(), self._key
        self._key, self._value = None, []
        if key == "name":
            name = _text_of(written)
            self.name = name if name in self._names else None
            self.is_broken |= self.name is None
        elif key in ARGUMENT_KEYS:
            self._end_arguments(written)
        elif key is None:
            self.is_broken = True

    def _end_arguments(self, written: str) -> None:
        if self._is_streaming:
            self.is_broken |= written != ""
            self._is_streaming, self._has_arguments = False, True
            return
        text = _text_of(written) if written.startswith('"') else written
        text = "{}" if text == "null" else (text or "").strip()
        self._has_arguments = text.startswith("{")
        self.is_broken |= not self._has_arguments
        self._fresh.append(text)

    def _end(self) -> None:
        """The object, or the arguments alone, are complete."""
        if self._key is not None or "".join(self._value).strip():
            self._end_value()
        if not self._has_arguments and not self.is_broken:
            self._has_arguments = True
            self._fresh.append("{}")
        self.is_broken |= self.name is None
        self.is_done = not self.is_broken


def _text_of(written: str) -> str | None:
    """Return the string that JSON spells, or None if it spells something else."""
    try:
        read = json.loads(written)
    except ValueError:
        return None
    return read if isinstance(read, str) else None
