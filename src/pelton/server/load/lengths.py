"""`Lengths`: a distribution of token counts, as one writes it on a command line. Pure arithmetic."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

from pelton.core.errors import InvalidParameterError

_ALLOWED = "N, LOW-HIGH (all equally likely) or MEDIAN~SIGMA (log-normal), from 1 to 1048576 tokens"
_MAX_LENGTH = 2**20


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts from `low` to `high`: uniform, or log-normal around `median` if that is set."""

    low: int
    high: int
    median: float | None = None
    sigma: float = 0.0

    @classmethod
    def parse(cls, text: str, name: str) -> Lengths:
        """Read `128`, `64-256` or `200~0.8`; raises `InvalidParameterError` naming `name`."""
        if (match := re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", text)) is not None:
            low = int(match[1])
            high = low if match[2] is None else int(match[2])
            if 1 <= low <= high <= _MAX_LENGTH:
                return cls(low, high)
        elif (match := re.fullmatch(r"(\d{1,7})~(\d(?:\.\d{1,6})?)", text)) is not None:
            median = int(match[1])
            if 1 <= median <= _MAX_LENGTH:
                return cls(1, _MAX_LENGTH, float(median), float(match[2]))
        raise InvalidParameterError(name, text, _ALLOWED)

    def draw(self, source: random.Random) -> int:
        """One length."""
        if self.median is None:
            return source.randint(self.low, self.high)
        length = round(self.median * math.exp(self.sigma * source.gauss(0.0, 1.0)))
        return min(max(length, self.low), self.high)
