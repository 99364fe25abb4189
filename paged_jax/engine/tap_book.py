"""The taps of live requests: packed for each step, and what they have read, until they end.

A position is read once: what is computed again after a preemption is not read again.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from paged_jax.config import ModelConfig
from paged_jax.device.step_batch import StepBatch
from paged_jax.device.taps import ADD, SET, Edits, TapOutput, empty_taps
from paged_jax.host.request import Chunk, Request
from paged_jax.host.taps import Edit, SetVector, Taps, ZeroHead, place, span
from paged_jax.outputs import Captures


class Reading(NamedTuple):
    """One position of one request, read in a step from its row among the packed tokens."""

    request_id: str
    position: int
    row: int


@dataclass(frozen=True)
class TapReads:
    """What a launched step reads.

    Attributes:
        weights: layer and reading of each attention row, in order.
        out: the arrays on the device; None before the launch.
    """

    readings: list[Reading]
    weights: list[tuple[int, Reading]]
    out: TapOutput | None = None


@dataclass
class _Tapped:
    """One live request.

    Attributes:
        wanted: positions to be read; None is all.
        stream: of each edit of the stream its layer, first position, end and ADD or SET.
        heads: of each edit of heads the same, and the head.
        taken: positions that a launched step reads.
        residual: by position, of each layer wanted: [wanted embed].
        weights: by position and layer, [q_heads context].
    """

    taps: Taps
    wanted: frozenset[int] | None
    stream: np.ndarray
    vectors: np.ndarray
    heads: np.ndarray
    taken: set[int] = field(default_factory=set)
    residual: dict[int, np.ndarray] = field(default_factory=dict)
    weights: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request, taps: Taps) -> "_Tapped":
        """Return it before its first step."""
        prompt_len, wanted = len(request.prompt), None
        if taps.positions is not None:
            wanted = frozenset(place(position, prompt_len) for position in taps.positions)
        vectors = [edit.vector for edit in taps.vectors]
        return cls(
            taps,
            wanted,
            _columns(taps.vectors, prompt_len),
            np.array(vectors, np.float32),
            _columns(taps.heads, prompt_len),
        )

    def take(self, chunk: Chunk, first_row: int) -> list[Reading]:
        """Return what is to be read of a chunk, and note it."""
        if not self.taps.captures:
            return []
        readings = [
            Reading(chunk.sequence.request.id, chunk.start + offset, first_row + offset)
            for offset in range(chunk.length)
            if self._is_wanted(chunk.start + offset)
        ]
        self.taken.update(reading.position for reading in readings)
        return readings

    def _is_wanted(self, position: int) -> bool:
        return position not in self.taken and (self.wanted is None or position in self.wanted)

    def captures(self, num_tokens: int) -> Captures:
        """Return what was read of the first `num_tokens` tokens."""
        positions = tuple(sorted(at for at in self.residual if at < num_tokens))
        if not positions:
            return Captures(positions, {}, {})
        streams = np.stack([self.residual[at] for at in positions], axis=1)
        attention = {
            layer: np.stack([self.weights[at, layer][:, : positions[-1] + 1] for at in positions])
            for layer in self.taps.attention
        }
        return Captures(positions, dict(zip(self.taps.residual, streams, strict=True)), attention)


class TapBook:
    """Knows what the live requests' taps ask for."""

    def __init__(self, model: ModelConfig):
        self._model = model
        self._live: dict[str, _Tapped] = {}

    def add(self, request: Request) -> None:
        """Take a request, if it has taps."""
        if request.sampling.taps is not None:
            self._live[request.id] = _Tapped.of(request, request.sampling.taps)

    def pack(self, chunks: Seq[Chunk], batch: StepBatch) -> tuple[StepBatch, TapReads | None]:
        """Return the step's batch with the taps of its requests, and what it reads.

        The batch stays as it is if none has any.
        """
        first_rows = accumulate((chunk.length for chunk in chunks), initial=0)
        tapped = [
            (chunk, row, self._live[chunk.sequence.request.id])
            for chunk, row in zip(chunks, first_rows, strict=False)
            if chunk.sequence.request.is_tapped
        ]
        if not tapped:
            return batch, None
        taps: Any = empty_taps(len(batch.tokens), self._model.num_layers, self._model.embed_dim)
        readings, weights = list[Reading](), list[tuple[int, Reading]]()
        for seat, (chunk, row, request) in enumerate(tapped):
            taps.seats[row : row + chunk.length] = seat + 1
            read = request.take(chunk, row)
            readings += read
            weights += [(layer, each) for layer in request.taps.attention for each in read]
        weights.sort(key=lambda pair: pair[0])
        rows = [[layer, each.row] for layer, each in weights]
        _fill(taps.weight_starts, [taps.weight_rows], np.array(rows, np.int32).reshape(-1, 2))
        requests = [request for _, _, request in tapped]
        _fill_edits(taps.heads, [request.heads for request in requests])
        order = _fill_edits(taps.stream, [request.stream for request in requests])
        if len(order):
            vectors = [request.vectors for request in requests if len(request.vectors)]
            taps.vectors[: len(order)] = np.concatenate(vectors)[order]
        return replace(batch, taps=taps), TapReads(readings, weights)

    def absorb(self, reads: TapReads | None) -> None:
        """Wait for what a step has read, and keep what belongs to live requests."""
        if reads is None or reads.out is None or not reads.readings:
            return
        residual = np.asarray(reads.out.residual, np.float32)
        for each in reads.readings:
            if each.request_id in self._live:
                tapped = self._live[each.request_id]
                tapped.residual[each.position] = residual[list(tapped.taps.residual), each.row]
        weights = np.asarray(reads.out.weights) if reads.weights else None
        for index, (layer, each) in enumerate(reads.weights):
            if weights is not None and each.request_id in self._live:
                row = weights[index].copy()
                self._live[each.request_id].weights[each.position, layer] = row

    def drop(self, request_id: str, num_tokens: int) -> Captures | None:
        """Forget a request; return what was read for it.

        Args:
            num_tokens: of its prompt and answer, without what the answer ends with: that is never
                computed but where a step ran ahead.
        """
        tapped = self._live.pop(request_id, None)
        if tapped is None or not tapped.taps.captures:
            return None
        return tapped.captures(num_tokens)


def _columns(edits: Seq[Edit], prompt_len: int) -> np.ndarray:
    """Layer, first position, end and value of each edit."""
    rows = [[edit.layer, *span(edit, prompt_len), _value(edit)] for edit in edits]
    return np.array(rows, np.int32).reshape(-1, 4)


def _value(edit: Edit) -> int:
    if isinstance(edit, ZeroHead):
        return edit.head
    return SET if isinstance(edit, SetVector) else ADD


def _fill_edits(edits: Edits, tables: list[np.ndarray]) -> np.ndarray:
    """Write the edits of each seat; return the order they are written in."""
    seats = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    rows = np.concatenate(tables)
    order = np.argsort(rows[:, 0], kind="stable")
    columns = [edits.begins, edits.ends, edits.values, edits.seats]
    _fill(edits.starts, columns, np.column_stack([rows, seats])[order])
    return order


def _fill(starts: Any, columns: list[Any], rows: np.ndarray) -> None:
    """Write rows sorted by the layer they begin with, a column each, and where layers begin."""
    assert all(len(rows) <= len(column) for column in columns), "more taps than there is room for"
    starts[:] = np.searchsorted(rows[:, 0], np.arange(len(starts)))
    for index, column in enumerate(columns):
        column[: len(rows)] = rows[:, index + 1]
