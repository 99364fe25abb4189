"""How a runner talks to the benchmark: lines of JSON over its standard input and output.

The runner is started as `PYTHON RUNNER.py OPTIONS`, OPTIONS being a JSON object of strings. It
loads its engine and writes one line of facts; then it answers every line it reads, and ends with
its input:

    {"run": [{"prompt": [ids], "max_tokens": n}, ...]}
        -> {"times": [[s, ...], ...], "ids": [[id, ...], ...], "figures": {...}}
    {"reset": true} -> {}

Times are `time.perf_counter()` when a token became visible to the engine's caller; that clock is
the same in all processes of a Linux machine. Standard library only.
"""

import json
import os
import sys
import time


def serve(load):
    """Run the loop.

    Args:
        load: called with the options; returns an object with `facts` (a dict with name and
            version), `run(requests)` -> (times, ids), both with a list per request, `reset()`, and,
            if it likes, `figures()`: what it knows of memory and cache in its last run.
    """
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to standard error
    start = time.perf_counter()
    engine = load(json.loads(sys.argv[1]))
    _send(lines, {**engine.facts, "load_s": time.perf_counter() - start})
    for line in sys.stdin:
        message = json.loads(line)
        if "run" in message:
            times, ids = engine.run(message["run"])
            figures = engine.figures() if hasattr(engine, "figures") else {}
            _send(lines, {"times": times, "ids": ids, "figures": figures})
        else:
            engine.reset()
            _send(lines, {})


def refuse_unknown(options, known):
    """End the program if there are options that this engine does not have."""
    for name in sorted(set(options) - set(known)):
        sys.exit(f"there is no option {name}; there are {', '.join(sorted(known))}")


def value_of(text):
    """Return a value of JSON, or the text itself where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _send(lines, message):
    lines.write(json.dumps(message) + "\n")
    lines.flush()
