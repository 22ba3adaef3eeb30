"""`SchedulerStats`: what the scheduler counts, as plain data for metrics and explanations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefixCacheStats:
    """Counters since the start. Tokens are counted once per request, at its first admission.

    `num_query_tokens` were asked for, `num_hit_tokens` of them reused. `num_misses` counts requests by the reason that
    ended their reuse (values of `CacheMissReason`; a request that reused all but its last token has none).
    """

    num_query_tokens: int
    num_hit_tokens: int
    num_misses: Mapping[str, int]


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
