"""Taps: what to read from a model's layers, and to change in them, while one request is computed.

Layers count from 0. The residual stream is read and changed before a layer; the number of layers
itself stands for the stream behind the last one, before the final norm. Positions count the tokens
of prompt and answer; negative ones count back from the end of the prompt, so that -1, its last
token, is where the answer's first token is drawn.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from paged_jax.config import ModelConfig
from paged_jax.host.field_checks import show
from paged_jax.host.invalid_request import InvalidRequest

MAX_TAPPED = 4  # requests with taps that are computed side by side
MAX_EDITS = 64  # of one request, and of one kind: in the stream, and of heads
MAX_WEIGHTS = 32  # attention rows of one request in one step: a position in a layer is one
MAX_POSITIONS = 1 << 16
MAX_CAPTURED = 1 << 24  # numbers one request may capture
_ALL_LAYERS = 1 << 16
_LAST = 1 << 30


@dataclass(frozen=True)
class AddVector:
    """Add a vector to the residual stream before a layer, at positions start to stop - 1.

    Attributes:
        vector: as many numbers as the model's hidden size.
        stop: None is no end.
    """

    layer: int
    vector: tuple[float, ...]
    start: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        _normalise(self)


@dataclass(frozen=True)
class SetVector:
    """Replace the residual stream before a layer at one position, as by that of another run."""

    layer: int
    vector: tuple[float, ...]
    position: int

    def __post_init__(self) -> None:
        _normalise(self)


@dataclass(frozen=True)
class ZeroHead:
    """Let one query head of a layer give zeros at positions start to stop - 1.

    Attributes:
        stop: None is no end.
    """

    layer: int
    head: int
    start: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        _normalise(self)


Edit = AddVector | SetVector | ZeroHead


@dataclass(frozen=True, kw_only=True)
class Taps:
    """What one request reads from the layers, and changes in them; see the module.

    Such a request neither reads nor fills the prefix cache.

    Attributes:
        residual: layers before which the residual stream is captured, with its edits.
        attention: layers whose attention weights are captured, of every query head.
        positions: where; None is everywhere.
        edits: changes, in their order where several meet.
    """

    residual: tuple[int, ...] = ()
    attention: tuple[int, ...] = ()
    positions: tuple[int, ...] | None = None
    edits: tuple[Edit, ...] = ()

    def __post_init__(self) -> None:
        for name, most in (("residual", _ALL_LAYERS), ("attention", MAX_WEIGHTS)):
            object.__setattr__(self, name, _whole_numbers(name, getattr(self, name), most))
        if self.positions is not None:
            positions = _whole_numbers("positions", self.positions, MAX_POSITIONS)
            object.__setattr__(self, "positions", positions)
        edits = cast("object", self.edits)
        if not isinstance(edits, list | tuple):
            raise _error(f"edits must be a list, not {show(edits)}")
        object.__setattr__(self, "edits", tuple(cast("list[object]", edits)))
        self._check_edits()

    def _check_edits(self) -> None:
        for edit in cast("tuple[object, ...]", self.edits):
            if not isinstance(edit, Edit):
                raise _error(f"edits must hold AddVector, SetVector or ZeroHead, not {show(edit)}")
        for kind, count in (("vectors", len(self.vectors)), ("heads", len(self.heads))):
            if count > MAX_EDITS:
                raise _error(f"edits may hold {MAX_EDITS} {kind}, not {count}")

    @property
    def vectors(self) -> tuple[AddVector | SetVector, ...]:
        """The edits of the residual stream."""
        return tuple(edit for edit in self.edits if not isinstance(edit, ZeroHead))

    @property
    def heads(self) -> tuple[ZeroHead, ...]:
        """The edits of heads."""
        return tuple(edit for edit in self.edits if isinstance(edit, ZeroHead))

    @property
    def captures(self) -> bool:
        """Whether anything is read."""
        return bool(self.residual or self.attention)

    @property
    def chunk_limit(self) -> int | None:
        """Most tokens of the request that a step may compute, for its attention rows to fit."""
        num_layers = len(self.attention)
        is_few = self.positions is not None and len(self.positions) * num_layers <= MAX_WEIGHTS
        return None if is_few or not num_layers else MAX_WEIGHTS // num_layers

    def num_numbers(self, model: ModelConfig, num_tokens: int) -> int:
        """Return how many numbers are captured at most, of a request of so many tokens."""
        num_positions = num_tokens if self.positions is None else len(self.positions)
        per_position = len(self.residual) * model.embed_dim
        per_position += len(self.attention) * model.num_q_heads * num_tokens
        return num_positions * per_position


def check_field(taps: object, n: int) -> None:
    """Raise InvalidRequest unless a request of n choices may have such taps."""
    if taps is not None and not isinstance(taps, Taps):
        raise InvalidRequest(f"taps must be Taps, not {show(taps)}", "taps")
    if taps is not None and n > 1:
        raise InvalidRequest(f"taps need n to be 1, not {n}", "taps")


def check_taps(taps: Taps, model: ModelConfig, *, prompt_len: int, num_tokens: int) -> None:
    """Refuse what this model and prompt do not have.

    Args:
        num_tokens: of prompt and answer, at most.
    Raises:
        InvalidRequest: names the part of `taps`, the value and the limit.
    """
    layers = model.num_layers
    for layer in taps.residual:
        _check("residual", layer, 0, layers)
    for layer in taps.attention:
        _check("attention", layer, 0, layers - 1)
    for position in taps.positions or ():
        _check("positions", position, -prompt_len, num_tokens - 1)
    for edit in taps.edits:
        _check_edit(edit, model, prompt_len, num_tokens)
    count = taps.num_numbers(model, num_tokens)
    if count > MAX_CAPTURED:
        raise _error(
            f"would capture {count} numbers, more than {MAX_CAPTURED}: name fewer layers or "
            "positions, or give a smaller max_tokens"
        )


def place(position: int, prompt_len: int) -> int:
    """Return a position counted from the first token."""
    return position + prompt_len if position < 0 else position


def span(edit: Edit, prompt_len: int) -> tuple[int, int]:
    """Return the first position an edit is made at, and the one after the last."""
    if isinstance(edit, SetVector):
        at = place(edit.position, prompt_len)
        return at, at + 1
    stop = _LAST if edit.stop is None else place(edit.stop, prompt_len)
    return place(edit.start, prompt_len), stop


def _check_edit(edit: Edit, model: ModelConfig, prompt_len: int, num_tokens: int) -> None:
    if isinstance(edit, ZeroHead):
        _check("layer", edit.layer, 0, model.num_layers - 1)
        _check("head", edit.head, 0, model.num_q_heads - 1)
    else:
        _check("layer", edit.layer, 0, model.num_layers)
        if len(edit.vector) != model.embed_dim:
            raise _error(
                f"a vector must have {model.embed_dim} numbers, as the model's hidden state, not "
                f"{len(edit.vector)}"
            )
    if isinstance(edit, SetVector):
        _check("position", edit.position, -prompt_len, num_tokens - 1)
    else:
        _check("start", edit.start, -prompt_len, num_tokens - 1)
        _check("stop", edit.stop or 0, -prompt_len, _LAST)


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise _error(f"{name} must be between {low} and {high} here, not {value}")


def _normalise(edit: Edit) -> None:
    """Take numbers of other types, as numpy's, and check that they are numbers."""
    for name in ("layer", "head", "start", "stop", "position"):
        value: object = getattr(edit, name, None)
        if value is not None:
            object.__setattr__(edit, name, _whole(name, value))
    if not isinstance(edit, ZeroHead):
        object.__setattr__(edit, "vector", _vector(edit.vector))


def _vector(values: object) -> tuple[float, ...]:
    try:
        vector = tuple(float(value) for value in cast("Iterable[float]", values))
    except (TypeError, ValueError):
        raise _error(f"a vector must hold numbers, not {show(values)}") from None
    if not all(map(math.isfinite, vector)):
        raise _error("a vector must hold finite numbers")
    return vector


def _whole_numbers(name: str, values: object, most: int) -> tuple[int, ...]:
    """A list's numbers in order, each once."""
    try:
        numbers = dict.fromkeys(_whole(name, v) for v in cast("Iterable[object]", values))
    except TypeError:
        raise _error(f"{name} must be a list of whole numbers, not {show(values)}") from None
    if len(numbers) > most:
        raise _error(f"{name} takes at most {most} numbers, not {len(numbers)}")
    return tuple(numbers)


def _whole(name: str, value: object) -> int:
    """Any integer type as int."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _error(f"{name} must be a whole number, not {show(value)}")
    return cast(int, value).__index__()


def _error(text: str) -> InvalidRequest:
    return InvalidRequest(f"taps: {text}", "taps")
