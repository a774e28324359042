"""Stop strings over the borders of tokens: text that may become one is held back until it is clear.

push()     text in, text that is safe to give out
finish()   what was held back, when no more text comes

Invariant: what is given out is the text before the stop string that was complete first (of two that are complete with the
same character, the longer one); so it does not depend on the portions in which the text came.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Looks for stop strings in one answer. Not thread-safe. found: the one that ended it."""

    def __init__(self, stops: Sequence[str]) -> None:
        """stops: none of them empty."""
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """What of the text so far can be given out; nothing after a stop string was found."""
        if self.found is not None:
            return ""
        held = self._held + text
        first = self._first_complete(held)
        if first is not None:
            start, self.found = first
            self._held = ""
            return held[:start]
        keep = self._beginning_at_the_end(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        """The text that no stop string came of."""
        held, self._held = self._held, ""
        return held

    def _first_complete(self, text: str) -> tuple[int, str] | None:
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if not ends:
            return None
        _, start, stop = min(ends)
        return start, stop

    def _beginning_at_the_end(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = min(len(text), max((len(stop) - 1 for stop in self._stops), default=0))
        for length in range(longest, 0, -1):
            end = text[len(text) - length :]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stops):
                return length
        return 0
