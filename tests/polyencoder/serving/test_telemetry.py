"""The spans of requests, as a collector receives them over HTTP."""

from __future__ import annotations

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import polyencoder.serving.telemetry as telemetry_module
from polyencoder import ConfigError
from polyencoder.serving.telemetry import Telemetry

pytest.importorskip("opentelemetry.instrumentation.fastapi")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector(monkeypatch):
    """The spans that it received, each with its service's name: {name: [(service, span)]}."""
    found: dict[str, list] = {}

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            for resource in request.resource_spans:
                names = {one.key: one.value.string_value for one in resource.resource.attributes}
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        found.setdefault(span.name, []).append((names["service.name"], span))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield found
    server.shutdown()
    server.server_close()


def sent(client, spans, *, url: str, json: dict):
    """The answer to a request whose span the collector has: it ends after the answer has been sent."""
    answer = client.post(url, json=json, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    end = time.monotonic() + 30
    while f"POST {url}" not in spans and time.monotonic() < end:
        client.service.engine.telemetry._provider.force_flush()
    return answer


def test_a_search_is_a_span_of_the_clients_trace_with_its_steps(collector, serve):
    client = serve("poly", otel=True)
    before = time.time_ns()
    answer = sent(client, collector, url="/v1/search", json={"query": "do you ski ?", "top_k": 2}).json()
    ((service, request),) = collector["POST /v1/search"]
    assert service == "polyencoder"
    assert request.trace_id.hex() == TRACE
    assert request.parent_span_id.hex() == PARENT
    for name, step in {"queue": "queue", "encode": "encode", "score": "search"}.items():
        ((_, span),) = collector[name]
        assert (span.trace_id, span.parent_span_id) == (request.trace_id, request.span_id)
        milliseconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
        assert milliseconds == pytest.approx(answer["milliseconds"][step], abs=0.01)
        assert span.start_time_unix_nano >= before
    assert {span.parent_span_id for _, span in collector["tokenize"]} == {request.span_id}


def test_an_error_is_a_span_with_its_status(collector, serve, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "replies")
    client = serve("bi", otel=True)
    assert sent(client, collector, url="/v1/search", json={"query": "hi", "top_k": 0}).status_code == 422
    ((service, request),) = collector["POST /v1/search"]
    assert service == "replies"
    assert {one.value.int_value for one in request.attributes if one.key.endswith("status_code")} == {422}
    assert not {"queue", "encode", "score"} & collector.keys()


def test_probes_have_no_spans(collector, serve, monkeypatch):
    probes = ["/health", "/ready", "/metrics", "/metrics?name=x"]

    def traced() -> set[str]:
        collector.clear()
        client = serve("bi", otel=True)
        for place in [*probes, "/info"]:
            assert client.get(place).status_code == 200
        sent(client, collector, url="/v1/search", json={"query": "health"})
        return {name for name in collector if name.startswith(("GET", "POST"))}

    assert traced() == {"GET /info", "POST /v1/search"}
    monkeypatch.setenv("OTEL_PYTHON_FASTAPI_EXCLUDED_URLS", "info")  # a user's own choice
    assert "GET /health" in traced()


def test_closing_a_server_sends_what_is_left(collector, make_service):
    service = make_service("bi", otel=True)
    telemetry = service.engine.telemetry
    with telemetry._tracer.start_as_current_span("a request"):
        telemetry.add_steps(time.time_ns(), {"encode": 0.5})
    service.close()
    ((_, span),) = collector["encode"]
    assert span.end_time_unix_nano - span.start_time_unix_nano == 500_000_000


def test_without_a_collector_the_server_answers(serve, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")  # nobody listens
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    client = serve("bi", otel=True)
    assert client.post("/v1/search", json={"query": "hi"}).status_code == 200


def test_a_collector_that_hangs_does_not_keep_the_server(make_service, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and never answers
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(telemetry_module, "_LAST_SECONDS", 0.2)
        telemetry = make_service("bi", otel=True).engine.telemetry
        with telemetry._tracer.start_as_current_span("a request"):
            pass
        start = time.monotonic()
        telemetry.close()
        assert time.monotonic() - start < 9  # the exporter waits for ten seconds, and tries again


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"parlai-polyencoder\[otel\]"):
        Telemetry()
