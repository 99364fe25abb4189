"""StructuredOutputsParams: the form an answer must have, checked as far as that needs no compiler.

What is wrong inside a schema, a regular expression or a grammar is found when it is compiled
(`text.grammar`), before the request reaches the engine.
"""

import json as json_text
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from paged_jax.host.invalid_request import InvalidRequest

MAX_SOURCE_LEN = 1 << 16  # characters of a schema, regular expression or grammar
MAX_SCHEMA_DEPTH = 64
MAX_CHOICES = 1024
KINDS = ("json", "regex", "choice", "grammar", "json_object")
_SWITCHES = ("json_object", "disable_any_whitespace", "disable_additional_properties")


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """The form of an answer: exactly one of `json`, `regex`, `choice`, `grammar`, `json_object`.

    Raises InvalidRequest (a ValueError) that names the field.

    Attributes:
        json: a JSON Schema, as an object or as its text; kept as text.
        regex: the whole answer matches it; no look-around, no back-references.
        choice: the answer is one of these texts.
        grammar: in Lark's notation, or EBNF with `::=` as llama.cpp has it.
        json_object: the answer is any JSON object.
        disable_any_whitespace: JSON is written without white space.
        disable_additional_properties: objects of the schema have no properties it does not name.
        whitespace_pattern: a regular expression of the white space that JSON may have.
        after_reasoning: what goes before: nothing (None), perhaps a reasoning in <think> marks
            (False), or the rest of one (True). Set by the server.
        named: the field to be blamed in errors.
    """

    json: str | Mapping[str, object] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    after_reasoning: bool | None = None
    named: str = "structured_outputs"

    def __post_init__(self) -> None:
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool | None):
                raise self._error(f"{name} must be true or false")
        if self.json_object is False:
            object.__setattr__(self, "json_object", None)
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise self._error(f"needs exactly one of {', '.join(KINDS)}, not {len(given)}")
        if self.json is not None:
            object.__setattr__(self, "json", self._schema_text(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", self._choices(self.choice))
        for name in ("json", "regex", "grammar", "whitespace_pattern"):
            self._check_text(name, getattr(self, name))

    @property
    def kind(self) -> str:
        """Which of the five forms it is."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    def _error(self, text: str) -> InvalidRequest:
        return InvalidRequest(f"{self.named} {text}", self.named)

    def _check_text(self, name: str, value: object) -> None:
        if value is None:
            return
        if not isinstance(value, str) or not value:
            raise self._error(f"needs {name} to be a text that is not empty")
        if len(value) > MAX_SOURCE_LEN:
            raise self._error(f"allows {MAX_SOURCE_LEN} characters of {name}, not {len(value)}")

    def _schema_text(self, schema: object) -> str:
        """The schema as JSON, in the order in which it was given."""
        try:
            if isinstance(schema, str):
                schema = json_text.loads(schema)
            text = json_text.dumps(schema, ensure_ascii=False)
        except RecursionError:
            raise self._error(f"allows {MAX_SCHEMA_DEPTH} levels of a schema") from None
        except (TypeError, ValueError):
            raise self._error("needs json to be a JSON Schema") from None
        if not isinstance(schema, Mapping) or not schema:
            raise self._error("needs json to be a JSON Schema: an object that is not empty")
        if not _is_shallow(cast(object, schema), MAX_SCHEMA_DEPTH):
            raise self._error(f"allows {MAX_SCHEMA_DEPTH} levels of a schema")
        return text

    def _choices(self, choices: object) -> tuple[str, ...]:
        if not isinstance(choices, list | tuple) or not choices:
            raise self._error("needs choice to be a list of texts that is not empty")
        texts = cast("list[object] | tuple[object, ...]", choices)
        if len(texts) > MAX_CHOICES:
            raise self._error(f"allows {MAX_CHOICES} choices, not {len(texts)}")
        size = 0
        for text in texts:
            self._check_text("each choice", text)
            size += len(str(text))
        if size > MAX_SOURCE_LEN:
            raise self._error(f"allows {MAX_SOURCE_LEN} characters of choices, not {size}")
        return tuple(cast("list[str]", list(texts)))


def _is_shallow(value: object, depth: int) -> bool:
    """Whether a JSON value has at most `depth` levels."""
    level = [value]
    for _ in range(depth + 1):
        level = [inner for outer in level for inner in _children(outer)]
        if not level:
            return True
    return False


def _children(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(cast("Mapping[str, object]", value).values())
    return list(cast("list[object]", value)) if isinstance(value, list | tuple) else []
