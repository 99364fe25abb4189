"""Log-probabilities in OpenAI's two shapes and vLLM's prompt shape.

Every entry comes from a `PositionLogprobs`: the chosen token first, then the likeliest in order.
Minus infinity, which JSON lacks, becomes -9999.0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paged_jax.outputs import Logprob, PositionLogprobs
from server.wire import Json

LOWEST = -9999.0


@dataclass(frozen=True)
class TokenSpelling:
    """How tokens are written in an answer: as their text, or as `token_id:<id>`."""

    token_text: Callable[[int], str]
    as_ids: bool = False

    def __call__(self, token: int, entry: Logprob | None) -> str:
        """Return the token as the client sees it; `entry` knows its text if there is one."""
        if self.as_ids:
            return f"token_id:{token}"
        return self.token_text(token) if entry is None else entry.decoded_token


def finite(logprob: float) -> float:
    """Return the log-probability as JSON can hold it."""
    return max(logprob, LOWEST)


def likeliest(table: PositionLogprobs, count: int) -> list[tuple[int, Logprob]]:
    """Return the `count` likeliest entries in order; the chosen one only if it is among them."""
    return sorted(table.items(), key=lambda item: -item[1].logprob)[:count]


def chosen_and_likeliest(table: PositionLogprobs, count: int) -> list[tuple[int, Logprob]]:
    """Return the chosen entry, then those of the `count` likeliest that are not it."""
    (chosen, entry), *_ = table.items()
    return [(chosen, entry), *(item for item in likeliest(table, count) if item[0] != chosen)]


class CompletionLogprobs:
    """Builds the lists of one completion choice; `text_offset` goes on from part to part."""

    def __init__(self, count: int, spell: TokenSpelling):
        self._count, self._spell, self._offset = count, spell, 0

    def part(self, tokens: Sequence[int], tables: Sequence[PositionLogprobs | None]) -> Json:
        """Return the lists for these positions; the prompt's first position has no table."""
        part: dict[str, list[object]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for token, table in zip(tokens, tables, strict=True):
            entry = None if table is None else table[token]
            text = self._spell(token, entry)
            part["tokens"].append(text)
            part["token_logprobs"].append(None if entry is None else finite(entry.logprob))
            part["top_logprobs"].append(None if table is None else self._top(table))
            part["text_offset"].append(self._offset)
            self._offset += len(text)
        return part

    def _top(self, table: PositionLogprobs) -> dict[str, float]:
        """Where two tokens have one text, the chosen or likelier one is listed."""
        top: dict[str, float] = {}
        for token, entry in chosen_and_likeliest(table, self._count):
            top.setdefault(self._spell(token, entry), finite(entry.logprob))
        return top


def chat_logprobs(
    tokens: Sequence[int], tables: Sequence[PositionLogprobs], count: int, spell: TokenSpelling
) -> Json:
    """Return the entries of a chat choice; `top_logprobs` holds exactly the `count` likeliest."""

    def entry_of(token: int, entry: Logprob) -> Json:
        return {
            "token": spell(token, entry),
            "logprob": finite(entry.logprob),
            "bytes": list(entry.token_bytes),
        }

    content = [
        entry_of(token, table[token])
        | {"top_logprobs": [entry_of(*item) for item in likeliest(table, count)]}
        for token, table in zip(tokens, tables, strict=True)
    ]
    return {"content": content}


def prompt_logprobs(
    tables: Sequence[PositionLogprobs | None], count: int
) -> list[dict[str, Json] | None]:
    """Return one table per prompt position, by token id: the prompt's token, then the likeliest."""

    def entry_of(entry: Logprob) -> Json:
        return {
            "logprob": finite(entry.logprob),
            "rank": entry.rank,
            "decoded_token": entry.decoded_token,
        }

    return [
        None
        if table is None
        else {str(token): entry_of(entry) for token, entry in chosen_and_likeliest(table, count)}
        for table in tables
    ]
