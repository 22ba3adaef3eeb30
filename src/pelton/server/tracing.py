"""OpenTelemetry: a span per request with its parts below, when an endpoint is configured. Start at `make_tracer`.

The packages are imported here only, and only then; without an endpoint there is no tracer and nothing is paid.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pelton.core.errors import ConfigError
from pelton.core.trace import RequestTrace
from pelton.insight.request_spans import Attributes, describe_request, list_spans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer as OtelTracer

_ATTRIBUTE_TYPES = (str, bool, int, float)


@dataclass(frozen=True, slots=True)
class Tracer:
    """Sends finished requests as spans: one per HTTP request, below it one per generation, below that its parts."""

    provider: TracerProvider
    tracer: OtelTracer

    def record(
        self,
        name: str,
        span_s: tuple[float, float],
        traceparent: str | None,
        fields: Mapping[str, object],
        generations: Sequence[RequestTrace] = (),
    ) -> None:
        """Send a span from `span_s[0]` to `span_s[1]` (`time.perf_counter()`); `traceparent` is the caller's header."""
        from opentelemetry.propagate import extract

        start_s, end_s = span_s
        end_ns = time.time_ns() - int((time.perf_counter() - end_s) * 1e9)
        context = extract({"traceparent": traceparent}) if traceparent else None
        span = self.tracer.start_span(name, context=context, start_time=end_ns - int((end_s - start_s) * 1e9))
        for key, value in fields.items():
            if isinstance(value, _ATTRIBUTE_TYPES):
                span.set_attribute(f"pelton.{key}", value)
        for trace in generations:
            self._record_generation(trace, span, end_s, end_ns)
        span.end(end_ns)

    def _record_generation(self, trace: RequestTrace, parent: OtelSpan, end_s: float, end_ns: int) -> None:
        def to_ns(time_s: float) -> int:
            return end_ns - int((end_s - min(time_s, end_s)) * 1e9)

        def start(name: str, time_s: float, attributes: Attributes, parent: OtelSpan) -> OtelSpan:
            named = {f"pelton.{key}": value for key, value in attributes.items()}
            return self.tracer.start_span(
                name, context=set_span_in_context(parent), start_time=to_ns(time_s), attributes=named
            )

        from opentelemetry.trace import set_span_in_context

        span = start("generation", trace.arrival_s, describe_request(trace), parent)
        for part in list_spans(trace, end_s):
            start(part.name, part.start_s, part.attributes, span).end(to_ns(part.end_s))
        span.end(to_ns(end_s if trace.end_s is None else trace.end_s))

    def close(self) -> None:
        """Send what waits."""
        self.provider.shutdown()


def make_tracer(endpoint: str | None) -> Tracer | None:
    """A tracer that exports to an OTLP/HTTP endpoint; None for None.

    Raises `ConfigError` if the OpenTelemetry packages are not installed.
    """
    if endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            "--otlp-endpoint needs the packages opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "pelton"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return Tracer(provider, provider.get_tracer("pelton.server"))
