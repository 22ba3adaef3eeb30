"""Traces in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

The format is Google's "Trace Event Format" document: complete events (X) that nest per track, metadata (M) and counters
(C); times are microseconds. Process "requests" has a track per request and one for what it sends, process "engine" the
steps with their parts. Start at `make_chrome_trace`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pelton.core.trace import RequestTrace, StepTrace, WaitCause
from pelton.insight.request_parts import list_chunks, list_tokens, list_waits
from pelton.insight.request_story import describe_miss, to_ms

Json = dict[str, object]

REQUESTS, ENGINE = 1, 2
_STEPS = 1


@dataclass(slots=True)
class _Event:
    """A span of seconds; `is_wait` gives way to what follows it."""

    name: str
    category: str
    start_s: float
    end_s: float
    args: Json = field(default_factory=dict)
    is_wait: bool = False


def make_chrome_trace(
    traces: Sequence[RequestTrace], steps: Iterable[StepTrace], now_s: float, held_up_by: WaitCause | None = None
) -> Json:
    """One JSON object for `traces` and `steps`; time 0 is the first thing that happened.

    `now_s` is seconds of `time.perf_counter()`; `held_up_by` is why the last step admitted nobody.
    """
    all_steps = {step.number: step for step in steps}
    for trace in traces:
        all_steps.update({step.number: step for step in list(trace.steps)})
    ordered = [all_steps[number] for number in sorted(all_steps)]
    starts = [trace.arrival_s for trace in traces] + [step.start_s for step in ordered[:1]]
    clock = _Clock(min(starts, default=now_s))
    names = {number: trace.request_id for trace in traces for number in trace.numbers}
    events: list[Json] = [_name_process(REQUESTS, "requests"), _name_process(ENGINE, "engine")]
    events.append(_name_track(ENGINE, _STEPS, "steps"))
    for step in ordered:
        events += _list_step_events(step, clock, names)
    tracks = itertools.count(1)
    for trace in traces:
        events += _list_request_events(trace, tracks, clock, now_s, held_up_by)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"producer": "pelton"}}


@dataclass(frozen=True, slots=True)
class _Clock:
    origin_s: float

    def to_us(self, time_s: float) -> float:
        """Microseconds since the origin, rounded to nanoseconds."""
        return round((time_s - self.origin_s) * 1e6, 3)

    def write(self, event: _Event, process: int, track: int) -> Json:
        start_us = self.to_us(event.start_s)
        return {
            "ph": "X",
            "name": event.name,
            "cat": event.category,
            "pid": process,
            "tid": track,
            "ts": start_us,
            "dur": max(round(self.to_us(event.end_s) - start_us, 3), 0.0),
            "args": event.args,
        }


def _list_request_events(
    trace: RequestTrace, tracks: Iterator[int], clock: _Clock, now_s: float, held_up_by: WaitCause | None
) -> list[Json]:
    lanes = _lay_out(_list_life(trace, now_s, held_up_by))
    named = [(trace.request_id, lanes[0])]
    named += [(f"{trace.request_id} (at the same time)", lane) for lane in lanes[1:]]
    sends = [_Event("send", "send", send.taken_s, send.done_s) for send in list(trace.sends)]
    if sends:
        named.append((f"{trace.request_id} (sends)", sends))
    events: list[Json] = []
    for (name, spans), track in zip(named, tracks, strict=False):
        events.append(_name_track(REQUESTS, track, name))
        events += [clock.write(span, REQUESTS, track) for span in spans]
    return events


def _list_life(trace: RequestTrace, now_s: float, held_up_by: WaitCause | None) -> list[_Event]:
    """Everything of a request but its sends, by start."""
    facts: Json = {
        "caller": trace.tenant,
        "prompt_tokens": trace.num_prompt_tokens,
        "cached_tokens": trace.num_cached_tokens,
        "cache_miss": describe_miss(trace.cache_miss),
        "state": trace.state,
        "finish_reason": trace.finish_reason,
    }
    events = [_Event("tokenise", "request", trace.arrival_s, trace.arrival_s + trace.tokenize_s, facts)]
    for wait in list_waits(trace, now_s, held_up_by):
        name = f"queue ({wait.cause.value})" if wait.cause is not WaitCause.PREEMPTED else "preempted"
        events.append(_Event(name, "wait", wait.start_s, wait.end_s, {"cause": wait.cause.value}, is_wait=True))
    by_step: dict[int, _Event] = {}
    for chunk in list_chunks(trace):
        args: Json = {
            "step": chunk.step.number,
            "tokens": chunk.num_tokens,
            "others_tokens": chunk.num_others_tokens,
            "lost_ms": to_ms(chunk.lost_s),
        }
        name = f"prefill {chunk.num_tokens}"
        by_step[chunk.step.number] = _Event(name, "prefill", chunk.step.model_start_s, chunk.step.end_s, args)
    for token in list_tokens(trace):
        step = token.step
        if step.number not in by_step:
            args = {"step": step.number, "batch": step.num_sequences, "tokens": 0}
            by_step[step.number] = _Event("decode", "decode", step.model_start_s, step.end_s, args)
        facts = by_step[step.number].args
        # Of several choices in one step the longest gap is told.
        if to_ms(token.gap_s) > _get_number(facts, "gap_ms"):
            facts |= {"gap_ms": to_ms(token.gap_s), "wait_ms": to_ms(token.wait_s), "stall_ms": to_ms(token.stall_s)}
        if by_step[step.number].category == "decode":
            facts["tokens"] = int(_get_number(facts, "tokens")) + 1
    return sorted([*events, *by_step.values()], key=lambda event: (event.start_s, event.end_s))


def _get_number(args: Json, name: str) -> float:
    value = args.get(name, -1.0)
    return value if isinstance(value, (int, float)) else -1.0


def _lay_out(events: list[_Event]) -> list[list[_Event]]:
    """Lanes of events that follow each other; more than one where choices of a request do different things."""
    lanes: list[list[_Event]] = []
    for event in events:
        for lane in lanes:
            last = lane[-1]
            # A request is admitted while its step is planned: the moments may differ by as much.
            if last.is_wait and not event.is_wait and event.start_s < last.end_s <= event.end_s:
                last.end_s = event.start_s
            if last.end_s <= event.start_s:
                lane.append(event)
                break
        else:
            lanes.append([event])
    return lanes


def _list_step_events(step: StepTrace, clock: _Clock, names: dict[int, str]) -> list[Json]:
    held_up_by = None if step.held_up_by is None else step.held_up_by.value
    tokens: dict[str, int] = {}
    for share in step.shares:
        name = names.get(share.number, f"sequence {share.number}")
        tokens[name] = tokens.get(name, 0) + share.num_tokens
    facts: Json = {
        "decodes": step.num_decodes,
        "prompt_tokens": step.num_prompt_tokens,
        "waiting": step.num_waiting,
        "held_up_by": held_up_by,
        "used_blocks": step.num_used_blocks,
        "decode_alone_ms": None if step.decode_alone_s is None else to_ms(step.decode_alone_s),
        "tokens_of": tokens,
    }
    spans = [_Event(f"step {step.number}", "step", step.start_s, step.end_s, facts)]
    time_s = step.start_s
    for name, duration_s in (("plan", step.plan_s), ("model", step.model_s), ("sample", step.sample_s)):
        end_s = min(time_s + duration_s, step.end_s)
        spans.append(_Event(name, "step", time_s, end_s))
        time_s = end_s
    spans.append(_Event("text", "step", max(step.end_s - step.text_s, time_s), step.end_s))
    events = [clock.write(span, ENGINE, _STEPS) for span in spans]
    counts: tuple[tuple[str, Json], ...] = (
        ("sequences", {"running": step.num_sequences, "waiting": step.num_waiting}),
        ("KV blocks", {"used": step.num_used_blocks}),
    )
    for name, values in counts:
        events.append({"ph": "C", "name": name, "pid": ENGINE, "ts": clock.to_us(step.start_s), "args": values})
    return events


def _name_process(process: int, name: str) -> Json:
    return {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}


def _name_track(process: int, track: int, name: str) -> Json:
    return {"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": {"name": name}}
