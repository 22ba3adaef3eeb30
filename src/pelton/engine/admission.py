"""`Admission`: whether one more request may queue, and when to come back if not.

Plain counting; the caller holds the lock. Entry point: `Admission.check`.
"""

from __future__ import annotations

from collections import deque

from pelton.core.errors import EngineOverloadedError

# Starts over which rates are measured, and how far back they may lie.
_MAX_NUM_STARTS = 256
_WINDOW_S = 60.0
# What is said while no rate is known, and the bounds of what is said.
_DEFAULT_RETRY_S = 1.0
_MIN_RETRY_S = 0.1
_MAX_RETRY_S = 600.0


class Admission:
    """Limits on requests that wait for their first step; None means no limit.

    A request that finds the queue empty is always let in, however long its prompt.
    """

    def __init__(self, max_queued_requests: int | None, max_queued_tokens: int | None) -> None:
        self._max_queued_requests = max_queued_requests
        self._max_queued_tokens = max_queued_tokens
        # Times of recent first steps and the prompt tokens that left the queue with them.
        self._starts: deque[tuple[float, int, int]] = deque(maxlen=_MAX_NUM_STARTS)

    def note_started(self, now_s: float, num_requests: int, num_tokens: int) -> None:
        """Take note that requests left the queue for their first step."""
        self._starts.append((now_s, num_requests, num_tokens))

    def check(self, now_s: float, *, num_queued_requests: int, num_queued_tokens: int, num_new_tokens: int) -> None:
        """Raise `EngineOverloadedError` if a request of `num_new_tokens` prompt tokens finds no room."""
        if num_queued_requests == 0:
            return
        for what, num_queued, num_new, limit, column in (
            ("requests", num_queued_requests, 1, self._max_queued_requests, 1),
            ("tokens", num_queued_tokens, num_new_tokens, self._max_queued_tokens, 2),
        ):
            if limit is not None and num_queued + num_new > limit:
                # The queue need not become shorter than empty for a prompt that is longer than the limit.
                num_leaving = min(num_queued + num_new - limit, num_queued)
                retry_s = self._estimate(now_s, num_leaving, column)
                raise EngineOverloadedError(
                    f"queued {what} with this request would be {num_queued + num_new}; allowed: at most {limit} "
                    f"(max_queued_{what}); try again in {retry_s:.1f} s",
                    retry_s,
                )

    def _estimate(self, now_s: float, num_leaving: int, column: int) -> float:
        """Seconds until `num_leaving` have left the queue, at the rate of late."""
        recent = [start for start in self._starts if now_s - start[0] <= _WINDOW_S]
        if not recent:
            return _DEFAULT_RETRY_S
        num_left = sum(start[column] for start in recent)
        elapsed_s = max(now_s - recent[0][0], 1e-3)
        return min(max(num_leaving * elapsed_s / max(num_left, 1), _MIN_RETRY_S), _MAX_RETRY_S)
