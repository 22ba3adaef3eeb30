"""`RateLimiter`: requests and tokens of one caller within a minute. It knows time and numbers only.

A bucket per caller and kind, refilled continuously (token bucket, Turner 1986, "leaky bucket as a meter"): a caller may
use a minute's allowance at once and then goes on at its rate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_MINUTE_S = 60.0


@dataclass(slots=True)
class _Bucket:
    """What is left of an allowance of `size` per minute. It may be negative: tokens are charged when they are known."""

    size: float
    left: float
    time_s: float

    def refill(self, now_s: float) -> None:
        self.left = min(self.size, self.left + (now_s - self.time_s) * self.size / _MINUTE_S)
        self.time_s = now_s

    def compute_wait_s(self, amount: float) -> float:
        """Seconds until `amount` is there; 0 if it is."""
        return max(0.0, (amount - self.left) * _MINUTE_S / self.size)


@dataclass(slots=True)
class RateLimiter:
    """Limits of one server; None sets none. `clock` gives seconds. One event loop uses it, so it has no lock."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    clock: Callable[[], float] = time.monotonic
    _requests: dict[str, _Bucket] = field(default_factory=dict)
    _tokens: dict[str, _Bucket] = field(default_factory=dict)

    def admit(self, caller: str) -> float:
        """Count a request: 0 if it may run, else the seconds to wait, and nothing is counted.

        A caller whose tokens are used up waits until its bucket is positive again.
        """
        now_s = self.clock()
        requests = _get_bucket(self._requests, caller, self.requests_per_minute, now_s)
        tokens = _get_bucket(self._tokens, caller, self.tokens_per_minute, now_s)
        wait_s = max(
            0.0 if requests is None else requests.compute_wait_s(1.0),
            0.0 if tokens is None else tokens.compute_wait_s(1.0),
        )
        if wait_s == 0.0 and requests is not None:
            requests.left -= 1.0
        return wait_s

    def charge_tokens(self, caller: str, num_tokens: int) -> None:
        """Take the tokens of a request, prompt and output, from its caller's allowance."""
        bucket = _get_bucket(self._tokens, caller, self.tokens_per_minute, self.clock())
        if bucket is not None:
            bucket.left -= num_tokens


def _get_bucket(buckets: dict[str, _Bucket], caller: str, size: int | None, now_s: float) -> _Bucket | None:
    if size is None:
        return None
    bucket = buckets.get(caller)
    if bucket is None:
        bucket = buckets[caller] = _Bucket(float(size), float(size), now_s)
    bucket.refill(now_s)
    return bucket


def format_retry_after(wait_s: float) -> str:
    """The value of a Retry-After header: whole seconds, at least one."""
    return str(max(1, math.ceil(wait_s)))
