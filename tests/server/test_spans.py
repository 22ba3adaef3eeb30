"""OpenTelemetry spans of real requests, kept in memory by the SDK's own exporter."""

from __future__ import annotations

import pytest
from live_server import wait_until
from scripted import echo, make_engine, say

from pelton.server.tracing import Tracer

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace import TracerProvider  # after the check that it is there
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # as above
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # as above


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(serve, exporter):
    """Start a server whose spans go to `exporter`."""

    def start(engine):
        server = serve(engine)
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        server.state.tracer = Tracer(provider, provider.get_tracer("test"))
        return server

    return start


def get_spans(exporter: InMemorySpanExporter, num_roots: int = 1) -> list:
    """All spans, once that many HTTP requests have ended."""
    wait_until(lambda: sum(s.parent is None for s in exporter.get_finished_spans()) == num_roots, "the spans")
    return list(exporter.get_finished_spans())


def test_a_request_has_its_parts_below_it(traced, exporter) -> None:
    server = traced(make_engine(echo, prefill_chunk=8))
    server.complete("abcdefghijklmno", stream=True)
    spans = get_spans(exporter)
    (root,) = (span for span in spans if span.parent is None)
    assert root.name == "POST /v1/completions"
    (generation,) = (span for span in spans if span.name == "generation")
    assert generation.parent.span_id == root.context.span_id
    assert generation.attributes["pelton.prompt_tokens"] == 16
    assert generation.attributes["pelton.finish_reason"] == "stop"
    assert generation.attributes["pelton.cache_miss"] == "first_time"
    parts = [span for span in spans if span.parent is not None and span.parent.span_id == generation.context.span_id]
    assert {span.name for span in parts} == {"tokenise", "queue", "prefill", "decode", "send"}
    assert {span.context.trace_id for span in spans} == {root.context.trace_id}
    prefills = [dict(span.attributes) for span in parts if span.name == "prefill"]
    assert [prefill["pelton.tokens"] for prefill in prefills] == [8, 8]
    assert {prefill["pelton.others_tokens"] for prefill in prefills} == {0}
    (decode,) = (span for span in parts if span.name == "decode")
    assert (decode.attributes["pelton.steps"], decode.attributes["pelton.tokens"]) == (15, 15)
    assert decode.attributes["pelton.stall_ms"] == 0.0
    assert {span.attributes["pelton.cause"] for span in parts if span.name == "queue"} == {"step"}
    for span in parts:
        assert root.start_time <= span.start_time <= span.end_time <= root.end_time


def test_the_callers_trace_goes_on(traced, exporter) -> None:
    server = traced(make_engine(echo))
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"traceparent": f"00-{trace_id}-{span_id}-01"}
    server.client.post("/v1/completions", json={"prompt": "abc"}, headers=headers)
    wait_until(lambda: exporter.get_finished_spans(), "the spans")
    wait_until(lambda: any(s.name.startswith("POST") for s in exporter.get_finished_spans()), "the root")
    spans = exporter.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in spans} == {trace_id}
    root = next(span for span in spans if span.name.startswith("POST"))
    assert f"{root.parent.span_id:016x}" == span_id


def test_each_prompt_has_a_span_of_its_own(traced, exporter) -> None:
    server = traced(make_engine(echo))
    server.complete(["a", "bc"], n=2)
    spans = get_spans(exporter)
    generations = [span for span in spans if span.name == "generation"]
    assert sorted(span.attributes["pelton.prompt_tokens"] for span in generations) == [2, 3]


def test_requests_without_a_generation_are_one_span(traced, exporter) -> None:
    server = traced(make_engine(echo))
    server.client.get("/health")
    server.complete(temperature=-1)
    assert sorted(span.name for span in get_spans(exporter, 2)) == ["GET /health", "POST /v1/completions"]


def test_a_client_that_leaves_has_spans_up_to_then(traced, exporter) -> None:
    server = traced(make_engine(say("x", end=None)))
    server.engine.runner.step_s = 0.002
    body = {"prompt": "abc", "stream": True, "max_tokens": 400}
    with server.client.stream("POST", "/v1/completions", json=body) as stream:
        next(stream.iter_lines())
    spans = get_spans(exporter)
    (root,) = (span for span in spans if span.parent is None)
    assert root.attributes["pelton.status"] == 499
    assert any(span.name == "prefill" for span in spans)
    assert all(span.end_time <= root.end_time for span in spans)
