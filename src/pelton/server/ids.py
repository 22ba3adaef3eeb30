"""Ids of responses and requests: a random start and a counter, so that making one costs next to nothing."""

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
