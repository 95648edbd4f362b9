"""OpenTelemetry: a span for each request, with a span for each of its steps, sent to a collector by OTLP over HTTP.

A request's span continues the trace of its `traceparent` header (W3C Trace Context). The steps are `tokenize`, `queue`,
`encode` and `score`, which is the search where there is one. Texts of a request may be in several batches: each step's
span is then as long as all its parts together, and the spans follow one another.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from fastapi import FastAPI

from polyencoder.packages import require

_PROBES = "/health$,/ready$,/metrics$"  # of URLs without their queries
_LAST_SECONDS = 3.0  # for the last spans; the exporter itself tries again for half a minute
_EXCLUDED = {"OTEL_PYTHON_FASTAPI_EXCLUDED_URLS", "OTEL_PYTHON_EXCLUDED_URLS"}


class Telemetry:
    """Exports the spans of one worker. The standard variables OTEL_... configure it, for example the collector's URL.

    Raises:
        ConfigError: the extra `otel` is not installed.
    """

    def __init__(self) -> None:
        trace = require("opentelemetry.sdk.trace", extra="otel")
        export = require("opentelemetry.sdk.trace.export", extra="otel")
        otlp = require("opentelemetry.exporter.otlp.proto.http.trace_exporter", extra="otel")
        self._current = require("opentelemetry.trace", extra="otel").get_current_span
        self._instrumentation = require("opentelemetry.instrumentation.fastapi", extra="otel")
        resources = require("opentelemetry.sdk.resources", extra="otel")
        own = (
            {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "polyencoder"}
        )  # which would take precedence
        self._provider = trace.TracerProvider(resource=resources.Resource.create(own), shutdown_on_exit=False)
        self._provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("polyencoder")

    def instrument(self, app: FastAPI) -> None:
        """Starts a span for each request of an application, but those that ask for its state every few seconds."""
        self._instrumentation.FastAPIInstrumentor.instrument_app(
            app,
            tracer_provider=self._provider,
            exclude_spans=["receive", "send"],
            excluded_urls=None if _EXCLUDED & os.environ.keys() else _PROBES,
        )

    def add_steps(self, start: int, seconds: Mapping[str, float]) -> None:
        """Adds steps, one after the other, to the span of the current request; none outside of one, as in warm-up.

        Args:
            start: of the first, in nanoseconds since the epoch.
            seconds: the duration of each, by name.
        """
        if not self._current().is_recording():
            return
        for name, duration in seconds.items():
            end = start + round(duration * 1e9)
            self._tracer.start_span(name, start_time=start).end(end)
            start = end

    def close(self) -> None:
        """Sends the remaining spans, and ends the exporter; a collector that does not answer in time gets none."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_LAST_SECONDS)
