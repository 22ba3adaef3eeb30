"""`CacheMiss`: why a prompt was not taken from the prefix cache as a whole. Plain data."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class CacheMissReason(enum.Enum):
    """What ended the reuse of a prompt at some position.

    FIRST_TIME: no such continuation is known. DIVERGED: a cached sequence has another token there. EVICTED: it was
    cached, and its block has been needed for something else. PARTIAL_BLOCK: it is cached, but there was no room for a
    copy of the block in which the reuse would have ended. SALT: it is cached under another salt. OFF: the cache is
    switched off, or the request asked for something that only computing gives (log-probabilities of the prompt).
    """

    FIRST_TIME = "first_time"
    DIVERGED = "diverged_at"
    EVICTED = "evicted"
    PARTIAL_BLOCK = "partial_block"
    SALT = "salt"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class CacheMiss:
    """Why tokens from `position` on had to be computed; all tokens before it were reused."""

    reason: CacheMissReason
    position: int

    def __str__(self) -> str:
        is_place_telling = self.reason is CacheMissReason.DIVERGED
        return f"{self.reason.value}={self.position}" if is_place_telling else self.reason.value
