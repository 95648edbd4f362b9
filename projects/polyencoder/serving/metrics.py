"""Prometheus metrics: requests, the queue, batches of the model, and seconds of each."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["SHARED", "Counted", "Metrics"]

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable with the folder in which workers keep what they count, so that each can give the sum."""

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_TOKENS = tuple(1 << n for n in range(4, 16))


class Metrics:
    """The counters of one server; a `polyencoder.serving.model_thread.Watcher`."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "polyencoder_requests", "Requests that were answered.", ["route", "status"], registry=registry
        )
        self.latency = Histogram(
            "polyencoder_request_seconds",
            "From a request's headers to its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.under_way = Gauge(
            "polyencoder_requests_under_way",
            "Requests that are being answered.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._queued = Gauge(
            "polyencoder_queued_tokens",
            "Tokens that wait for the model.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.tokenizing = Histogram(
            "polyencoder_tokenize_seconds", "To tokenize a request.", buckets=_SECONDS, registry=registry
        )
        self._encoding = Histogram(
            "polyencoder_encode_seconds",
            "Of each pass through the model.",
            ["kind"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._batch_size = Histogram(
            "polyencoder_batch_size",
            "Texts, or pairs, that went through the model together.",
            ["kind"],
            buckets=_COUNTS,
            registry=registry,
        )
        self._tokens = Histogram(
            "polyencoder_batch_tokens",
            "Tokens that went through the model together.",
            ["kind"],
            buckets=_TOKENS,
            registry=registry,
        )
        self._scoring = Histogram(
            "polyencoder_score_seconds",
            "To score or search for the requests that were finished together.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._finished = Histogram(
            "polyencoder_finished_together",
            "Requests that were scored or searched for together.",
            buckets=_COUNTS,
            registry=registry,
        )

    def queued(self, tokens: int) -> None:
        self._queued.set(tokens)

    def passed(self, kind: str, items: int, tokens: int, seconds: float) -> None:
        self._encoding.labels(kind).observe(seconds)
        self._batch_size.labels(kind).observe(items)
        self._tokens.labels(kind).observe(tokens)

    def finished(self, jobs: int, seconds: float) -> None:
        self._scoring.observe(seconds)
        self._finished.observe(jobs)

    def exposition(self) -> bytes:
        """All of it in Prometheus's text format; of several workers the sum."""
        if SHARED not in os.environ:
            return generate_latest(self._registry)
        for file in Path(os.environ[SHARED]).glob("gauge_live*_*.db"):
            pid = int(file.stem.rpartition("_")[2])
            if not _alive(pid):
                with suppress(FileNotFoundError):  # another worker was asked, too
                    mark_process_dead(pid)  # it cannot count down what it counted up
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone)
        return generate_latest(everyone)


class Counted:
    """Counts an application's answers by route and status, and their seconds."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start = time.perf_counter()
        answered = False

        def route() -> str:  # what clients make up would be labels without end
            return getattr(scope.get("route"), "path", "other")

        async def counted(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":  # before the client has it, who may then ask for the counts
                answered = True
                self._metrics.requests.labels(route(), str(message["status"])).inc()
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            if not answered:  # the client has disconnected
                self._metrics.requests.labels(route(), "none").inc()
            self._metrics.latency.labels(route()).observe(time.perf_counter() - start)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
