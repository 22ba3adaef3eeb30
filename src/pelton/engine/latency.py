"""From the times at which things happened to the figures people read. Pure functions; start at `make_timings`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pelton.core.outputs import ItlStats, Timings
from pelton.core.request import Request


def get_percentile(ordered: Sequence[float], fraction: float) -> float:
    """Quantile of ascending values by linear interpolation between neighbours (Hyndman and Fan 1996, definition 7)."""
    position = (len(ordered) - 1) * fraction
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def make_itl_stats(token_times_s: Sequence[float]) -> ItlStats:
    """Inter-token latency in milliseconds from the times of all tokens in seconds; zeros for fewer than two tokens."""
    if len(token_times_s) < 2:
        return ItlStats()
    gaps_ms = sorted((b - a) * 1e3 for a, b in itertools.pairwise(token_times_s))
    return ItlStats(
        mean=sum(gaps_ms) / len(gaps_ms), p50=get_percentile(gaps_ms, 0.5), p99=get_percentile(gaps_ms, 0.99)
    )


def make_timings(request: Request, token_times_s: Sequence[float], *, tokenize_s: float, load_ms: float) -> Timings:
    """Timings of a request whose tokens came at `token_times_s` (at least one; seconds of `time.perf_counter()`).

    `prefill_ms` runs from the first step that contains the request to its first token; a rate of which no time could
    be measured is 0.
    """
    assert request.first_scheduled_s is not None, f"{request.request_id} has a token but was never scheduled"
    first_s, last_s = token_times_s[0], token_times_s[-1]
    prefill_s = first_s - request.first_scheduled_s
    num_prefill_tokens = len(request.prompt_token_ids) - request.num_cached_tokens
    decode_s = last_s - first_s
    return Timings(
        load_ms=load_ms,
        tokenize_ms=tokenize_s * 1e3,
        prefill_ms=prefill_s * 1e3,
        ttft_ms=(first_s - request.arrival_s) * 1e3,
        itl_ms=make_itl_stats(token_times_s),
        prefill_tokens_per_s=num_prefill_tokens / prefill_s if prefill_s > 0 else 0.0,
        decode_tokens_per_s=(len(token_times_s) - 1) / decode_s if decode_s > 0 else 0.0,
    )
