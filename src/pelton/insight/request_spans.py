"""A request as a handful of spans, for OpenTelemetry: few enough for a request of any length. Start at `list_spans`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pelton.core.trace import RequestTrace
from pelton.insight.request_parts import Chunk, list_chunks, list_tokens, list_waits
from pelton.insight.request_story import to_ms

# A long prompt beside many decodes comes in hundreds of chunks; beyond this many they are one span.
MAX_NUM_CHUNKS = 32

Attributes = Mapping[str, str | int | float]


class Span(NamedTuple):
    """A part of a request, in seconds of `time.perf_counter()`."""

    name: str
    start_s: float
    end_s: float
    attributes: Attributes


def list_spans(trace: RequestTrace, now_s: float) -> list[Span]:
    """Tokenising, waits with their causes, chunks of the prompt, decoding as a whole, sending as a whole."""
    spans = [Span("tokenise", trace.arrival_s, trace.arrival_s + trace.tokenize_s, {"tokens": trace.num_prompt_tokens})]
    spans += [Span("queue", w.start_s, w.end_s, {"cause": w.cause.value}) for w in list_waits(trace, now_s)]
    chunks = list_chunks(trace)
    if len(chunks) <= MAX_NUM_CHUNKS:
        spans += [_make_prefill([chunk]) for chunk in chunks]
    else:
        spans.append(_make_prefill(chunks))
    spans += _list_decode(trace)
    sends = list(trace.sends)
    if sends:
        reader_s = sum(send.done_s - send.taken_s for send in sends)
        facts: Attributes = {"pieces": len(sends), "reader_ms": to_ms(reader_s)}
        spans.append(Span("send", sends[0].taken_s, sends[-1].done_s, facts))
    return spans


def describe_request(trace: RequestTrace) -> Attributes:
    """What holds for the whole request."""
    facts: dict[str, str | int | float] = {
        "request_id": trace.request_id,
        "caller": trace.tenant,
        "prompt_tokens": trace.num_prompt_tokens,
        "cached_tokens": trace.num_cached_tokens,
        "output_tokens": trace.num_output_tokens,
        "preemptions": trace.num_preemptions,
    }
    if trace.cache_miss is not None:
        facts["cache_miss"] = str(trace.cache_miss)
    if trace.finish_reason is not None:
        facts["finish_reason"] = trace.finish_reason
    return facts


def _make_prefill(chunks: list[Chunk]) -> Span:
    return Span(
        "prefill",
        chunks[0].step.start_s,
        chunks[-1].step.end_s,
        {
            "steps": len(chunks),
            "tokens": sum(chunk.num_tokens for chunk in chunks),
            "others_tokens": sum(chunk.num_others_tokens for chunk in chunks),
            "lost_ms": to_ms(sum(chunk.lost_s for chunk in chunks)),
        },
    )


def _list_decode(trace: RequestTrace) -> list[Span]:
    tokens = list_tokens(trace)
    first_s = trace.first_token_s
    if not tokens or first_s is None:
        return []
    facts: Attributes = {
        "steps": len({token.step.number for token in tokens}),
        "tokens": len(tokens),
        "stall_ms": to_ms(sum(token.stall_s for token in tokens)),
        "wait_ms": to_ms(sum(token.wait_s for token in tokens)),
        "max_gap_ms": to_ms(max(token.gap_s for token in tokens)),
    }
    return [Span("decode", first_s, tokens[-1].time_s, facts)]
