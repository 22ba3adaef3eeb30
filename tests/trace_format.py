"""A validator of the Trace Event Format, from Google's document of that name (the parts that Pelton uses)."""

from __future__ import annotations

import json
import math
from collections import defaultdict

METADATA = {
    "process_name": "name",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


def check_trace_format(document: object) -> list[dict]:
    """Return the events; AssertionError where the document breaks the format, or where spans of a track overlap."""
    text = json.dumps(document, allow_nan=False)
    read = json.loads(text)
    assert isinstance(read, dict)
    assert read.get("displayTimeUnit", "ms") in ("ms", "ns")
    events = read["traceEvents"]
    assert isinstance(events, list)
    spans: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    named: set[tuple[int, int]] = set()
    for event in events:
        assert event["ph"] in ("X", "M", "C"), event
        assert isinstance(event["name"], str)
        assert event["name"]
        assert type(event["pid"]) is int
        assert isinstance(event.get("args", {}), dict)
        if event["ph"] == "M":
            assert set(event["args"]) == {METADATA[event["name"]]}
            if event["name"] == "thread_name":
                named.add((event["pid"], event["tid"]))
            continue
        assert is_number(event["ts"])
        assert event["ts"] >= 0
        if event["ph"] == "C":
            assert event["args"]
            assert all(is_number(value) for value in event["args"].values())
            continue
        assert type(event["tid"]) is int
        assert is_number(event["dur"])
        assert event["dur"] >= 0
        assert isinstance(event["cat"], str)
        spans[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert set(spans) <= named, "a track without a name"
    for track, track_spans in spans.items():
        check_nesting(track, track_spans)
    return events


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def check_nesting(track: tuple[int, int], spans: list[tuple[float, float]]) -> None:
    """Complete events of a track lie within each other or apart (to a nanosecond, as times are rounded)."""
    open_ends: list[float] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_ends and open_ends[-1] <= start + 2e-3:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1] + 2e-3, f"spans of track {track} overlap at {start}"
        open_ends.append(end)
