"""Ids of responses and requests: a random start and a counter, so that making one costs next to nothing.

All ids of one HTTP request end alike (`RequestIds`), so that each of them finds its trace (`request_names.py`).
"""

from __future__ import annotations

import itertools
import secrets


class IdMaker:
    """Makes ids that do not repeat within a server and are unlikely to meet those of another one."""

    def __init__(self) -> None:
        self._start = secrets.token_hex(8)
        self._numbers = itertools.count()

    def make(self) -> str:
        """A new id of letters and digits."""
        return f"{self._start}{next(self._numbers):08x}"


class RequestIds:
    """The ids of one HTTP request, made of prefixes and one `suffix`."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix
        self._num_generations = 0

    def make(self, prefix: str) -> str:
        """The id of the response, or of the request itself: `prefix` says which, with its separator."""
        return prefix + self.suffix

    def make_generation_id(self) -> str:
        """The id of the next generation: gen-X, then gen-X-1, gen-X-2 for further prompts."""
        number = self._num_generations
        self._num_generations += 1
        return f"gen-{self.suffix}" if number == 0 else f"gen-{self.suffix}-{number}"
