"""Finds stop strings in streamed text, wherever the pieces are cut.

Text is released as soon as it can no longer be part of a match: nothing of a matched stop string is
ever given away, and nothing else is held longer than needed.
"""


class StopMatcher:
    """Watches one text for the first stop string to be completed.

    Attributes:
        matched: the stop string that was found; the text has ended there.
    """

    def __init__(self, stops: tuple[str, ...], *, include: bool = False):
        self._stops = stops
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str, *, is_armed: bool = True) -> str:
        """Return what `text` releases; nothing once a stop string has been found.

        Args:
            is_armed: False lets stop strings that are completed by `text` pass.
        """
        if self.matched is not None:
            return ""
        known, whole = len(self._held), self._held + text
        if is_armed and (found := self._first_match(whole, known)):
            start, end, self.matched = found
            self._held = ""
            return whole[: end if self._include else start]
        keep = self._held_len(whole)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    def flush(self) -> str:
        """Return the text still held; for when the generation ends otherwise."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str, known: int) -> tuple[int, int, str] | None:
        """Start, end and name of the match that ends first behind `known`; ties by list order."""
        found = []
        for order, stop in enumerate(self._stops):
            start = text.find(stop, max(0, known + 1 - len(stop)))
            if start >= 0:
                found.append((start + len(stop), order, start, stop))
        if not found:
            return None
        end, _, start, stop = min(found)
        return start, end, stop

    def _held_len(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stops):
                return length
        return 0
