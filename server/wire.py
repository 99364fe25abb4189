"""JSON objects and server-sent events, as bytes."""

import json
from typing import Any

Json = dict[str, Any]
"""One JSON object; values are narrowed where they are read."""

DONE = b"data: [DONE]\n\n"


def event(content: Json) -> bytes:
    """Return one server-sent event."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"
