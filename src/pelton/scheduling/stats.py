"""`SchedulerStats`: what the scheduler counts, as plain data for metrics and explanations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pelton.core.cache_miss import CacheMissReason
from pelton.core.request import Request


@dataclass(frozen=True, slots=True)
class PrefixCacheStats:
    """Counters since the start. Tokens are counted once per request, at its first admission.

    `num_query_tokens` were asked for, `num_hit_tokens` of them reused. `num_misses` counts requests by the reason that
    ended their reuse (values of `CacheMissReason`; a request that reused all but its last token has none).
    """

    num_query_tokens: int
    num_hit_tokens: int
    num_misses: Mapping[str, int]


class PrefixCounters:
    """The running counts behind `PrefixCacheStats`."""

    __slots__ = ("_num_hit_tokens", "_num_misses", "_num_query_tokens")

    def __init__(self) -> None:
        self._num_query_tokens = 0
        self._num_hit_tokens = 0
        self._num_misses: Counter[str] = Counter()

    def count(self, request: Request) -> None:
        """Count a request at its first admission. One that may not reuse anything asks for nothing."""
        miss = request.cache_miss
        if miss is not None:
            self._num_misses[miss.reason.value] += 1
            if miss.reason is CacheMissReason.OFF:
                return
        self._num_query_tokens += len(request.prompt_token_ids)
        self._num_hit_tokens += request.num_cached_tokens

    def make_stats(self) -> PrefixCacheStats:
        """The counts of this moment."""
        return PrefixCacheStats(self._num_query_tokens, self._num_hit_tokens, dict(self._num_misses))


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A moment's requests and KV blocks, and counters since the start.

    Waiting requests by reason: `capacity` (their turn has not come, or there is no room), `deferred` (another request
    computes their prompt), `preempted`. `kv_usage` is the share (0 to 1) of blocks that running requests own;
    `num_cached_blocks` are free, but still hold K/V that may be reused.
    """

    num_running: int
    num_waiting: int
    num_waiting_by_reason: Mapping[str, int]
    kv_usage: float
    num_blocks: int
    num_cached_blocks: int
    num_preemptions: int
    prefix_cache: PrefixCacheStats
