"""JSON objects and server-sent events, as bytes."""

import json
from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]
"""One JSON object; values are narrowed where they are read."""

DONE = b"data: [DONE]\n\n"


def events(contents: Iterable[Json]) -> bytes:
    """Return server-sent events; those that have a `type` are named after it."""
    return b"".join(map(_event, contents))


def _event(content: Json) -> bytes:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    name = f"event: {content['type']}\n" if "type" in content else ""
    return f"{name}data: {text}\n\n".encode()
