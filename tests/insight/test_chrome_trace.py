"""Traces for Perfetto: valid by a validator of our own, with the spans that a hand-made trace must have."""

from __future__ import annotations

import copy

import pytest
from traces import STEPS, at, make_step, make_trace

from pelton.core.trace import Wait, WaitCause
from pelton.insight.chrome_trace import ENGINE, REQUESTS, make_chrome_trace
from trace_format import check_trace_format


def list_spans(events: list[dict], process: int, track: int = 1) -> list[tuple[str, float, float]]:
    """(name, start, end) in ms of a track."""
    found = (e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (process, track))
    return [(e["name"], round(e["ts"] / 1e3, 3), round((e["ts"] + e["dur"]) / 1e3, 3)) for e in found]


def test_a_request_is_a_track_of_what_it_did() -> None:
    events = check_trace_format(make_chrome_trace([make_trace()], STEPS, at(500)))
    assert list_spans(events, REQUESTS) == [
        ("tokenise", 0.0, 2.0),
        ("queue (step)", 2.0, 5.0),
        ("queue (seats)", 5.0, 20.5),
        ("prefill 16", 21.0, 30.0),
        ("prefill 4", 31.0, 44.0),
        ("decode", 45.0, 55.0),
        ("decode", 61.0, 80.0),
    ]
    assert list_spans(events, REQUESTS, 2) == [("send", 44.0, 46.0), ("send", 55.0, 70.0)]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(ENGINE, 1): "steps", (REQUESTS, 1): "r", (REQUESTS, 2): "r (sends)"}
    decode = next(e for e in events if e["name"] == "decode")
    assert decode["args"] == {"step": 3, "batch": 3, "tokens": 1, "gap_ms": 11.0, "wait_ms": 1.0, "stall_ms": 4.0}
    prefill = next(e for e in events if e["name"] == "prefill 4")
    assert prefill["args"] == {"step": 2, "tokens": 4, "others_tokens": 5, "lost_ms": 7.0}


def test_the_engine_is_a_track_of_steps_with_their_parts() -> None:
    events = check_trace_format(make_chrome_trace([make_trace()], STEPS, at(500)))
    spans = list_spans(events, ENGINE)
    assert spans[5:10] == [
        ("step 2", 30.0, 44.0),
        ("plan", 30.0, 31.0),
        ("model", 31.0, 42.0),
        ("sample", 42.0, 43.0),
        ("text", 43.0, 44.0),
    ]
    step = next(e for e in events if e["name"] == "step 2")
    assert step["args"]["tokens_of"] == {"sequence 1": 1, "r": 4, "sequence 3": 4}
    assert (step["args"]["decodes"], step["args"]["prompt_tokens"], step["args"]["decode_alone_ms"]) == (1, 8, 3.0)
    counts = [e["args"] for e in events if e["ph"] == "C" and e["name"] == "KV blocks"]
    assert counts == [{"used": n} for n in (1, 2, 3, 4, 5)]


def test_a_wait_ends_where_the_step_begins_that_admitted_it() -> None:
    # Admitted half a ms after the planned start of the model.
    trace = make_trace(waits=[Wait(WaitCause.SEATS, at(2), at(21.5))], first_scheduled_s=at(21.5))
    events = check_trace_format(make_chrome_trace([trace], STEPS, at(500)))
    assert list_spans(events, REQUESTS)[1:3] == [("queue (seats)", 2.0, 21.0), ("prefill 16", 21.0, 30.0)]


def test_choices_that_do_different_things_do_not_overlap() -> None:
    steps = [make_step(1, 0, 10, [(2, 0, 4), (3, 3, 1)]), make_step(2, 10, 20, [(2, 4, 1)], num_decodes=1)]
    waits = [Wait(WaitCause.PREEMPTED, at(10), at(40)), Wait(WaitCause.PREEMPTED, at(25), at(50))]
    trace = make_trace(
        tokenize_s=0.0,
        numbers=(2, 3),
        num_prompt_tokens=4,
        steps=steps,
        waits=waits,
        token_times_s=[[at(9.5), at(19.5)], [at(9.5)]],
        sends=[],
    )
    events = check_trace_format(make_chrome_trace([trace], [], at(50)))
    assert ("preempted", 10.0, 40.0) in list_spans(events, REQUESTS)
    assert list_spans(events, REQUESTS, 2) == [("decode", 11.0, 20.0), ("preempted", 25.0, 50.0)]


def test_live_requests_and_nothing_at_all_are_valid() -> None:
    live = make_trace(end_s=None, first_scheduled_s=None, steps=[], token_times_s=[[]], waits=[], sends=[])
    events = check_trace_format(make_chrome_trace([live, make_trace()], [], at(50), WaitCause.MEMORY))
    assert list_spans(events, REQUESTS)[-1] == ("queue (memory)", 5.0, 50.0)
    check_trace_format(make_chrome_trace([], [], at(0)))


def test_the_validator_finds_what_is_wrong() -> None:
    good = make_chrome_trace([make_trace()], STEPS, at(500))
    for change in ({"ph": "Z"}, {"ts": -1.0}, {"dur": None}, {"pid": "1"}, {"tid": 99}, {"dur": 20e3}):
        bad = copy.deepcopy(good)
        event = next(e for e in bad["traceEvents"] if e["name"] == "queue (seats)")
        event.update(change)
        with pytest.raises(AssertionError):
            check_trace_format(bad)
