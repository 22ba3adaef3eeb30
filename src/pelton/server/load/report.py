"""From traces to figures: percentiles, throughput, goodput. Pure functions; start at `summarize`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pelton.core.percentile import get_percentile
from pelton.server.load.client import RequestTrace
from pelton.server.load.options import LoadOptions
from pelton.server.load.run import LoadTraces


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Mean and percentiles in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """The figures of one load.

    `itl_ms` is over all gaps between events with text of all requests; `tpot_ms` over the requests' mean times per
    token after the first. Throughput counts requests that succeeded, over the whole duration; `goodput_per_s` those
    of them that kept both limits.
    """

    num_requests: int
    num_failed: int
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    goodput_per_s: float
    good_share: float
    ttft_ms: Percentiles
    itl_ms: Percentiles
    tpot_ms: Percentiles
    latency_ms: Percentiles
    errors: dict[str, int]


def summarize(load: LoadTraces, options: LoadOptions) -> LoadSummary:
    """All figures of a load."""
    good = [trace for trace in load.traces if trace.error is None]
    duration_s = max(load.duration_s, 1e-9)
    num_output = sum(trace.num_output_tokens for trace in good)
    num_prompt = sum(trace.num_prompt_tokens for trace in good)
    num_within = sum(is_within(trace, options) for trace in good)
    gaps_s = [later - first for trace in good for first, later in itertools.pairwise(trace.event_times_s)]
    return LoadSummary(
        num_requests=len(load.traces),
        num_failed=len(load.traces) - len(good),
        duration_s=load.duration_s,
        prompt_tokens=num_prompt,
        output_tokens=num_output,
        cached_tokens=sum(trace.num_cached_tokens for trace in good),
        requests_per_s=len(good) / duration_s,
        output_tokens_per_s=num_output / duration_s,
        total_tokens_per_s=(num_prompt + num_output) / duration_s,
        goodput_per_s=num_within / duration_s,
        good_share=num_within / len(load.traces),
        ttft_ms=make_percentiles([trace.ttft_s for trace in good]),
        itl_ms=make_percentiles(gaps_s),
        tpot_ms=make_percentiles([trace.tpot_s for trace in good if trace.num_output_tokens > 1]),
        latency_ms=make_percentiles([trace.end_s - trace.start_s for trace in good]),
        errors=dict(Counter((trace.error or "")[:200] for trace in load.traces if trace.error is not None)),
    )


def is_within(trace: RequestTrace, options: LoadOptions) -> bool:
    """Whether a request that succeeded kept both limits."""
    return trace.ttft_s * 1e3 <= options.slo_ttft_ms and trace.tpot_s * 1e3 <= options.slo_tpot_ms


def make_percentiles(times_s: Sequence[float]) -> Percentiles:
    """Percentiles of times in seconds, in milliseconds; zeros if there are none."""
    if not times_s:
        return Percentiles(0.0, 0.0, 0.0, 0.0)
    ordered = sorted(time_s * 1e3 for time_s in times_s)
    p50, p90, p99 = (get_percentile(ordered, fraction) for fraction in (0.5, 0.9, 0.99))
    return Percentiles(sum(ordered) / len(ordered), p50, p90, p99)
