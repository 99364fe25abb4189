"""The end of every rank when one has failed: one sentence, then exit code 1.

A collective waits for all ranks for ever, and no Python exception reaches a thread that waits in
one; so the process ends itself.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable

logger = logging.getLogger("paged_jax")

LOSS_S = 1.0  # until the end of a rank is seen, after a step that it made fail
GRACE_S = 3.0  # for /health to be seen red and for clients to be told


class Failure:
    """Remembers the first failure and ends the process.

    Attributes:
        on_failure: told the sentence before the process ends.
    """

    def __init__(self, grace_s: float = GRACE_S):
        self.on_failure: Callable[[str], None] | None = None
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._is_over = False
        self._is_told = threading.Event()

    def settle(self) -> bool:
        """Let what is reported from now on belong to an orderly end; False if it is too late."""
        with self._lock:
            was_over, self._is_over = self._is_over, True
        return not was_over

    def wait(self, timeout_s: float) -> bool:
        """Wait until a failure has been told; return whether one has."""
        return self._is_told.wait(timeout_s)

    def report_step(self, sentence: str) -> None:
        """Report a step that failed here, unless a rank was lost, which comes out in a moment."""
        if not self.wait(LOSS_S):
            self.report(sentence)

    def report(self, sentence: str) -> None:
        """Tell why, once, and end the process soon."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        print(f"error: {sentence}", file=sys.stderr, flush=True)
        timer = threading.Timer(self._grace_s, os._exit, (1,))
        timer.daemon = True
        timer.start()
        try:
            if self.on_failure is not None:
                self.on_failure(sentence)
        finally:  # not earlier: who waits goes on with a failure of its own
            self._is_told.set()
