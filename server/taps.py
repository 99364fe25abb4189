"""The field `taps` of completions and chats: what to read from the layers and to change in them."""

from typing import Any

from paged_jax.config import ModelConfig
from paged_jax.host.invalid_request import InvalidRequest
from paged_jax.host.taps import (
    MAX_EDITS,
    MAX_WEIGHTS,
    AddVector,
    Edit,
    SetVector,
    Taps,
    ZeroHead,
)
from paged_jax.outputs import Captures
from server.schema import Fields, array, integer, number, obj, one_of
from server.wire import Json

MAX_LAYERS = 1024
MAX_PLACES = 4096
MAX_VECTOR_LEN = 1 << 16
MAX_NUMBERS = 1 << 18  # captured for one answer: as JSON about 5 MB
_FAR = 1 << 30

_LAYER = integer(0, MAX_LAYERS, "A layer; the number of layers is the stream behind the last.")
_PLACE = integer(-_FAR, _FAR, "A position of prompt and answer; from -1 on back from the prompt.")
_EDIT = obj(
    {
        "kind": one_of("add_vector", "set_vector", "zero_head", text="What to change."),
        "layer": _LAYER,
        "vector": array(
            number(-1e9, 1e9, "A number."), "As long as a hidden state.", high=MAX_VECTOR_LEN
        ),
        "position": {**_PLACE, "description": "Where set_vector sets."},
        "head": integer(0, MAX_LAYERS, "The query head of zero_head."),
        "start": {**_PLACE, "description": "The first position; 0 by default."},
        "stop": {**_PLACE, "description": "The position after the last; none by default."},
    },
    "A change of the residual stream before a layer, or of a head.",
    required=("kind", "layer"),
)
TAPS: Json = {
    "taps": obj(
        {
            "residual": array(_LAYER, "Layers to tell the stream before.", high=MAX_LAYERS),
            "attention": array(_LAYER, "Layers to tell the weights of.", high=MAX_WEIGHTS),
            "positions": array(_PLACE, "Where; everywhere by default.", high=MAX_PLACES),
            "edits": array(_EDIT, "Changes.", high=2 * MAX_EDITS),
        },
        "Read and change what is in the layers, in a server with --enable-taps. Needs n = 1; "
        f"tells at most {MAX_NUMBERS} numbers an answer, and none in streams.",
    )
}
# The fields of each kind of edit that have no default.
_NEEDED = {"add_vector": ("vector",), "set_vector": ("vector", "position"), "zero_head": ("head",)}


def taps_of(fields: Fields) -> Taps | None:
    """Return what the body asks for.

    Raises:
        InvalidRequest: an edit lacks a field, or a stream is to tell what is read.
    """
    given: Json | None = fields.get("taps")
    if given is None:
        return None
    taps = Taps(
        residual=given.get("residual") or (),
        attention=given.get("attention") or (),
        positions=given.get("positions"),
        edits=tuple(map(_edit, given.get("edits") or ())),
    )
    if taps.captures and fields.get("stream"):
        raise InvalidRequest("taps that read are not offered in streams", "taps")
    return taps


def check_size(taps: Taps | None, model: ModelConfig, num_tokens: int) -> None:
    """Raise InvalidRequest if the answer would hold too many numbers.

    Args:
        num_tokens: of prompt and answer, at most.
    """
    count = 0 if taps is None else taps.num_numbers(model, num_tokens)
    if count > MAX_NUMBERS:
        raise InvalidRequest(
            f"taps would tell {count} numbers, more than {MAX_NUMBERS}: name fewer layers or "
            "positions, or give a smaller max_tokens",
            "taps",
        )


def told(captures: Captures) -> Json:
    """Return what was read as JSON has it."""
    return {
        "positions": list(captures.positions),
        "residual": {str(layer): rows.tolist() for layer, rows in captures.residual.items()},
        "attention": {str(layer): rows.tolist() for layer, rows in captures.attention.items()},
    }


def _edit(given: Json) -> Edit:
    kind: str = given["kind"]
    for name in _NEEDED[kind]:
        if given.get(name) is None:
            raise InvalidRequest(f"taps: an edit of kind {kind} needs {name}", "taps")
    layer: int = given["layer"]
    reach: dict[str, Any] = {"start": given.get("start") or 0, "stop": given.get("stop")}
    if kind == "zero_head":
        return ZeroHead(layer, given["head"], **reach)
    if kind == "set_vector":
        return SetVector(layer, given["vector"], given["position"])
    return AddVector(layer, given["vector"], **reach)
