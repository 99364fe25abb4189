"""paged_jax.serve with a FakeEngine in place of a model: python serve_fake.py FLAGS.

STEP_S and FAIL_AFTER in the environment set the engine's attributes; LOAD_S is how long it loads.
"""

import os
import sys
import time

from fake_engine import FakeEngine

from paged_jax import serve


def load(_args) -> tuple[FakeEngine, str]:
    """Stand in for serve.load."""
    print("loading", file=sys.stderr, flush=True)
    time.sleep(float(os.environ.get("LOAD_S", "0")))
    engine = FakeEngine(step_s=float(os.environ.get("STEP_S", "0.01")))
    engine.fail_after = int(os.environ.get("FAIL_AFTER", "1000000"))
    return engine, "CPU"


if __name__ == "__main__":
    serve.load = load
    sys.exit(serve.main(sys.argv[1:]))
