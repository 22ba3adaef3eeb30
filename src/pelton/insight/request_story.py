"""A request's story as JSON: where its time went, chunk by chunk and token by token. Milliseconds since its arrival.

It holds no text and no token ids. Start at `make_story`; `make_row` is the line of a table.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pelton.core.cache_miss import CacheMiss
from pelton.core.percentile import get_percentile
from pelton.core.trace import RequestTrace, WaitCause
from pelton.insight.request_parts import list_chunks, list_tokens, list_waits

Json = dict[str, object]


def make_story(trace: RequestTrace, now_s: float, held_up_by: WaitCause | None = None) -> Json:
    """All that is known of a request, finished or not; `held_up_by` says why the last step admitted nobody.

    `now_s` is seconds of `time.perf_counter()`. What has not happened is None.
    """

    def since(time_s: float) -> float:
        return to_ms(time_s - trace.arrival_s)

    return {
        "request_id": trace.request_id,
        "caller": trace.tenant,
        "state": trace.state,
        "finish_reason": trace.finish_reason,
        "priority": trace.priority,
        "prompt_tokens": trace.num_prompt_tokens,
        "cached_tokens": trace.num_cached_tokens,
        "output_tokens": trace.num_output_tokens,
        "cache_miss": describe_miss(trace.cache_miss),
        "preemptions": trace.num_preemptions,
        "times": make_times(trace),
        "waits": [
            {"cause": wait.cause.value, "start": since(wait.start_s), "end": since(wait.end_s)}
            for wait in list_waits(trace, now_s, held_up_by)
        ],
        "prefill": [
            {
                "step": chunk.step.number,
                "start": since(chunk.step.start_s),
                "end": since(chunk.step.end_s),
                "tokens": chunk.num_tokens,
                "others_tokens": chunk.num_others_tokens,
                "lost": to_ms(chunk.lost_s),
            }
            for chunk in list_chunks(trace)
        ],
        "decode": [
            {
                "step": token.step.number,
                "start": since(token.step.start_s),
                "end": since(token.step.end_s),
                "choice": token.choice,
                "gap": to_ms(token.gap_s),
                "batch": token.step.num_sequences,
                "wait": to_ms(token.wait_s),
                "stall": to_ms(token.stall_s),
            }
            for token in list_tokens(trace)
        ],
        "sends": [{"taken": since(send.taken_s), "done": since(send.done_s)} for send in list(trace.sends)],
    }


def make_row(trace: RequestTrace, now_s: float) -> Json:
    """The line of a finished request in a table."""
    times = _make_stages(trace)
    num_gaps, gaps_s = 0, 0.0
    for times_s in trace.token_times_s:
        num_gaps += max(len(times_s) - 1, 0)
        gaps_s += times_s[-1] - times_s[0] if times_s else 0.0
    return {
        "request_id": trace.request_id,
        "caller": trace.tenant,
        "state": trace.state,
        "finish_reason": trace.finish_reason,
        "prompt_tokens": trace.num_prompt_tokens,
        "cached_tokens": trace.num_cached_tokens,
        "output_tokens": trace.num_output_tokens,
        "queue_ms": times["queue"],
        "ttft_ms": times["ttft"],
        "itl_ms": to_ms(gaps_s / num_gaps) if num_gaps else None,
        "total_ms": times["total"],
        "age_ms": None if trace.end_s is None else to_ms(now_s - trace.end_s),
        "preemptions": trace.num_preemptions,
        "cache_miss": describe_miss(trace.cache_miss),
    }


def make_times(trace: RequestTrace) -> Json:
    """Milliseconds of each stage; a request that ended before its first step has only queued."""
    return {**_make_stages(trace), "itl": _make_itl([list(times_s) for times_s in trace.token_times_s])}


def _make_stages(trace: RequestTrace) -> Json:
    first_s, last_s = (
        trace.first_token_s,
        max((times_s[-1] for times_s in trace.token_times_s if times_s), default=None),
    )
    started_s = trace.first_scheduled_s if trace.first_scheduled_s is not None else trace.end_s
    return {
        "tokenize": to_ms(trace.tokenize_s),
        "queue": _span(trace.arrival_s + trace.tokenize_s, started_s),
        "prefill": _span(trace.first_scheduled_s, first_s),
        "ttft": _span(trace.arrival_s, first_s),
        "decode": _span(first_s, last_s),
        "total": _span(trace.arrival_s, trace.end_s),
    }


def describe_miss(miss: CacheMiss | None) -> Json | None:
    """Why a prompt was not taken from the cache as a whole."""
    return None if miss is None else {"reason": miss.reason.value, "position": miss.position}


def to_ms(seconds: float) -> float:
    """Milliseconds, rounded to microseconds."""
    return round(seconds * 1e3, 3)


def _span(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else to_ms(max(end_s - start_s, 0.0))


def _make_itl(token_times_s: Sequence[Sequence[float]]) -> Json | None:
    gaps = sorted(b - a for times_s in token_times_s for a, b in itertools.pairwise(times_s))
    if not gaps:
        return None
    return {
        "mean": to_ms(sum(gaps) / len(gaps)),
        "p50": to_ms(get_percentile(gaps, 0.5)),
        "p99": to_ms(get_percentile(gaps, 0.99)),
        "max": to_ms(gaps[-1]),
    }
