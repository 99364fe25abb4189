"""A peer that counts up from the prompt's last id; PYTHONPATH must lead to wire.py.

The options `fail`, `short` and `noise` make it break, answer too short, or print.
"""

import sys
import time

import wire


class Engine:
    """Nothing but arithmetic."""

    def __init__(self, options):
        wire.refuse_unknown(options, ("model", "dtype", "threads", "fail", "short", "noise"))
        self.options = options
        self.facts = {"name": "fake", "version": "7"}
        if "noise" in options:
            print("a library says hello")

    def run(self, requests):
        if "fail" in self.options:
            sys.exit("the model is broken")
        cut = 1 if "short" in self.options else 0
        ids = [
            [each["prompt"][-1] + step for step in range(1, each["max_tokens"] + 1 - cut)]
            for each in requests
        ]
        now = time.perf_counter()
        return [[now + 0.001 * step for step in range(len(row))] for row in ids], ids

    def reset(self):
        pass


if __name__ == "__main__":
    wire.serve(Engine)
