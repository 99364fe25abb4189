"""JSON Schemas at random, with bounds on everything, so that documents stay short."""

import numpy as np


def random_schema(rng: np.random.Generator, depth: int = 2) -> dict:
    """A schema of a few levels with bounds on everything."""
    kinds = ["integer", "boolean", "string", "enum", "object", "array", "anyOf"]
    kind = kinds[rng.integers(len(kinds) if depth else 4)]
    inner = lambda: random_schema(rng, depth - 1)  # noqa: E731
    if kind == "object":
        names = [f"k{index}" for index in range(rng.integers(1, 4))]
        properties = {name: inner() for name in names}
        return {
            "type": kind,
            "properties": properties,
            "required": names[: int(rng.integers(0, len(names) + 1))],
            "additionalProperties": False,
        }
    return {
        "integer": {"type": kind, "minimum": int(rng.integers(-50, 0)), "maximum": 50},
        "boolean": {"type": kind},
        "string": {"type": kind, "maxLength": int(rng.integers(1, 6))},
        "enum": {kind: [None, 1.5, "é\n", {"a": []}][: rng.integers(1, 5)]},
        "array": {"type": kind, "items": inner() if depth else {}, "maxItems": 2},
        "anyOf": {kind: [inner(), inner()] if depth else [{}]},
    }[kind]
