"""Requests as few spans: hand-made traces against figures worked out by hand."""

from __future__ import annotations

from traces import at, make_step, make_trace

from pelton.insight.request_spans import MAX_NUM_CHUNKS, list_spans


def test_a_request_is_a_handful_of_spans() -> None:
    spans = list_spans(make_trace(), at(500))
    assert [
        (span.name, round((span.start_s - at(0)) * 1e3, 3), round((span.end_s - at(0)) * 1e3, 3)) for span in spans
    ] == [
        ("tokenise", 0.0, 2.0),
        ("queue", 2.0, 5.0),
        ("queue", 5.0, 20.5),
        ("prefill", 20.0, 30.0),
        ("prefill", 30.0, 44.0),
        ("decode", 43.0, 79.0),
        ("send", 44.0, 70.0),
    ]
    assert [span.attributes.get("cause") for span in spans[1:3]] == ["step", "seats"]
    assert spans[4].attributes == {"steps": 1, "tokens": 4, "others_tokens": 5, "lost_ms": 7.0}
    assert spans[5].attributes == {"steps": 2, "tokens": 2, "stall_ms": 4.0, "wait_ms": 7.0, "max_gap_ms": 25.0}
    assert spans[6].attributes == {"pieces": 2, "reader_ms": 17.0}


def test_many_chunks_are_one_span() -> None:
    num_chunks = MAX_NUM_CHUNKS + 1
    steps = [make_step(i + 1, 10 * i, 10 * i + 10, [(2, 8 * i, 8)]) for i in range(num_chunks)]
    trace = make_trace(num_prompt_tokens=8 * num_chunks, steps=steps, token_times_s=[[]], waits=[], sends=[])
    prefill = [span for span in list_spans(trace, at(500)) if span.name == "prefill"]
    assert len(prefill) == 1
    assert prefill[0].attributes["steps"] == num_chunks
    assert prefill[0].attributes["tokens"] == 8 * num_chunks
    assert prefill[0].end_s == steps[-1].end_s
