"""Where the time of a start goes: named phases, one after the other."""

import time


class PhaseClock:
    """Times phases that follow one another.

    Attributes:
        seconds: of each phase that has ended, by name, in order.
    """

    def __init__(self, *, since_s: float | None = None):
        """Begin now, or at `since_s` of the monotonic clock."""
        self._last_s = time.monotonic() if since_s is None else since_s
        self.seconds: dict[str, float] = {}

    def end(self, phase: str) -> None:
        """End the phase under way and name it."""
        now_s = time.monotonic()
        self.seconds[phase] = now_s - self._last_s
        self._last_s = now_s

    def table(self) -> str:
        """Return the phases and their sum, a line each."""
        rows = [*self.seconds.items(), ("total", sum(self.seconds.values()))]
        return "\n".join(f"  {name:<12} {seconds:7.2f} s" for name, seconds in rows)
