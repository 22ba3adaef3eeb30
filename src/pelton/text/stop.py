"""`StopStringMatcher`: finds stop strings in streamed text, also across the borders of deltas.

It must not know tokens. Its only class is the entry point.
"""

from __future__ import annotations

from collections.abc import Sequence

from pelton.core.errors import InvalidParameterError


class StopStringMatcher:
    """Passes text on up to the first stop string and holds back what may still become one.

    The stop string that is complete first wins (of several that end together, the longest), so the result does not
    depend on how the text is cut into deltas. The stop string itself and everything after it are dropped.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        if isinstance(stop, str):
            raise InvalidParameterError("stop", stop, "a list of strings")
        for string in stop:
            if not isinstance(string, str) or not string:
                raise InvalidParameterError("stop", string, "non-empty strings")
        self._stop = tuple(dict.fromkeys(stop))
        self._held = ""
        self.matched: str | None = None  # the stop string that was found

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next delta; return (text that is safe to show, whether a stop string was found).

        After a stop string was found nothing more is returned.
        """
        if self.matched is not None:
            return "", True
        text = self._held + text
        match = self._find_first(text)
        if match is not None:
            start, self.matched = match
            self._held = ""
            return text[:start], True
        num_safe = len(text) - self._count_held_back(text)
        self._held = text[num_safe:]
        return text[:num_safe], False

    def flush(self) -> str:
        """Return the text held back, when nothing more will come."""
        held, self._held = self._held, ""
        return held

    def _find_first(self, text: str) -> tuple[int, str] | None:
        """Return where the stop string that ends first begins, and that string."""
        starts = ((text.find(string), string) for string in self._stop)
        matches = [(start + len(string), start, string) for start, string in starts if start >= 0]
        return min(matches)[1:] if matches else None

    def _count_held_back(self, text: str) -> int:
        """Length of the longest end of `text` that is the beginning of a stop string."""
        longest = 0
        for string in self._stop:
            for length in range(min(len(string) - 1, len(text)), longest, -1):
                if text.endswith(string[:length]):
                    longest = length
                    break
        return longest
