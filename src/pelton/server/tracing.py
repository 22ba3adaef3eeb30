"""OpenTelemetry: one span per request, when an endpoint is configured. Start at `make_tracer`.

The packages are imported here only, and only then; without an endpoint there is no tracer and nothing is paid.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pelton.core.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer as OtelTracer

_ATTRIBUTE_TYPES = (str, bool, int, float)


@dataclass(frozen=True, slots=True)
class Tracer:
    """Sends finished requests as spans."""

    provider: TracerProvider
    tracer: OtelTracer

    def record(self, name: str, duration_s: float, traceparent: str | None, fields: Mapping[str, object]) -> None:
        """Send a span that ends now and lasted `duration_s`; `traceparent` is the caller's W3C header."""
        from opentelemetry.propagate import extract

        end_ns = time.time_ns()
        context = extract({"traceparent": traceparent}) if traceparent else None
        span = self.tracer.start_span(name, context=context, start_time=end_ns - int(duration_s * 1e9))
        for key, value in fields.items():
            if isinstance(value, _ATTRIBUTE_TYPES):
                span.set_attribute(f"pelton.{key}", value)
        span.end(end_ns)

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
