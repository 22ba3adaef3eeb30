"""From the times at which things happened to the figures people read. Pure functions; start at `make_timings`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pelton.core.outputs import ItlStats, Timings
from pelton.core.percentile import get_percentile
from pelton.core.request import Request


def make_itl_stats(*token_times_s: Sequence[float]) -> ItlStats:
    """Inter-token latency in milliseconds over all choices, from the times of each one's tokens in seconds.

    Zeros where no choice has two tokens.
    """
    gaps_ms = sorted((b - a) * 1e3 for times in token_times_s for a, b in itertools.pairwise(times))
    if not gaps_ms:
        return ItlStats()
    return ItlStats(
        mean=sum(gaps_ms) / len(gaps_ms), p50=get_percentile(gaps_ms, 0.5), p99=get_percentile(gaps_ms, 0.99)
    )


def make_timings(
    request: Request, token_times_s: Sequence[Sequence[float]], *, end_s: float, tokenize_s: float, load_ms: float
) -> Timings:
    """Timings of a request that ended at `end_s` and whose choices got tokens at `token_times_s`.

    Times are seconds of `time.perf_counter()`; `request` is the first choice's, which computed the prompt. `prefill_ms`
    runs from the first step that contains it to the first token. What did not come to pass (a request dropped in the
    queue has no first token), and a rate of which no time could be measured, is 0.
    """
    queue_end_s = end_s if request.first_scheduled_s is None else request.first_scheduled_s
    queue_s = max(queue_end_s - request.arrival_s - tokenize_s, 0.0)
    times_s = sorted(itertools.chain.from_iterable(token_times_s))
    if not times_s or request.first_scheduled_s is None:
        return Timings(load_ms=load_ms, tokenize_ms=tokenize_s * 1e3, queue_ms=queue_s * 1e3)
    first_s, last_s = times_s[0], times_s[-1]
    prefill_s = first_s - request.first_scheduled_s
    num_prefill_tokens = len(request.prompt_token_ids) - request.num_cached_tokens
    num_first_tokens = sum(1 for times in token_times_s if times)
    decode_s = last_s - first_s
    return Timings(
        load_ms=load_ms,
        tokenize_ms=tokenize_s * 1e3,
        queue_ms=queue_s * 1e3,
        prefill_ms=prefill_s * 1e3,
        ttft_ms=(first_s - request.arrival_s) * 1e3,
        itl_ms=make_itl_stats(*token_times_s),
        prefill_tokens_per_s=num_prefill_tokens / prefill_s if prefill_s > 0 else 0.0,
        decode_tokens_per_s=(len(times_s) - num_first_tokens) / decode_s if decode_s > 0 else 0.0,
    )
