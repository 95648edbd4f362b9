"""Prometheus metrics: requests, the queue, batches of the model, and the seconds of each."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyencoder.errors import ConfigError, PolyencoderError

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable with the folder where workers store their counts, so that each worker can report the sum."""

_ROOM = 1 << 18  # bytes: more than all routes, statuses and kinds need
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_TOKENS = tuple(1 << n for n in range(4, 16))


class Metrics:
    """The counters of one worker."""

    def __init__(self) -> None:
        if SHARED in os.environ:
            _reserve(Path(os.environ[SHARED]))
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        gauge = partial(Gauge, registry=self._registry, multiprocess_mode="livesum")
        seconds = partial(Histogram, registry=self._registry, buckets=_SECONDS)
        counts = partial(Histogram, registry=self._registry, buckets=_COUNTS)
        tokens = partial(Histogram, registry=self._registry, buckets=_TOKENS)
        route, kind = ["route"], ["kind"]
        self.requests = counter("polyencoder_requests", "Answered requests.", ["route", "status"])
        self.latency = seconds("polyencoder_request_seconds", "From a request's headers to its answer.", route)
        self.under_way = gauge("polyencoder_requests_under_way", "Requests in progress.")
        self.queued_tokens = gauge("polyencoder_queued_tokens", "Tokens that wait for the model.")
        self.tokenizing = seconds("polyencoder_tokenize_seconds", "Tokenizing a request.")
        self._encoding = seconds("polyencoder_encode_seconds", "A batch through the model.", kind)
        self._batch_size = counts("polyencoder_batch_size", "Texts, or pairs, of a batch.", kind)
        self._batch_tokens = tokens("polyencoder_batch_tokens", "Tokens of a batch.", kind)
        self._scoring = seconds("polyencoder_score_seconds", "Scoring or searching for jobs that finish together.")
        self._finished = counts("polyencoder_finished_together", "Jobs that were scored or searched for together.")

    def count_batch(self, kind: str, items: int, tokens: int, seconds: float) -> None:
        """Counts a batch of items of a kind."""
        self._encoding.labels(kind).observe(seconds)
        self._batch_size.labels(kind).observe(items)
        self._batch_tokens.labels(kind).observe(tokens)

    def count_jobs(self, jobs: int, seconds: float) -> None:
        """Counts jobs that were finished in one call."""
        self._scoring.observe(seconds)
        self._finished.observe(jobs)

    def format_metrics(self) -> bytes:
        """All metrics in Prometheus's text format; the sum over the workers."""
        if SHARED not in os.environ:
            return generate_latest(self._registry)
        for file in Path(os.environ[SHARED]).glob("gauge_live*_*.db"):
            pid = int(file.stem.rpartition("_")[2])
            if not _is_alive(pid):
                with suppress(OSError):  # removed by another worker; or the folder belongs to another user
                    mark_process_dead(pid)  # the dead worker cannot decrement its gauges
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone)
        return generate_latest(everyone)


class CountingMiddleware:
    """ASGI middleware: counts an application's answers by route and status, and their seconds."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start = time.perf_counter()
        answered = False

        def get_route() -> str:  # arbitrary paths would be unlimited labels
            return getattr(scope.get("route"), "path", "other")

        async def count_and_send(message: Message) -> None:
            nonlocal answered
            # before the client, which may then request the counts, has the answer
            if message["type"] == "http.response.start":
                answered = True
                self._metrics.requests.labels(get_route(), str(message["status"])).inc()
            await send(message)

        try:
            await self._app(scope, receive, count_and_send)
        finally:
            if not answered:  # the client has disconnected
                self._metrics.requests.labels(get_route(), "none").inc()
            self._metrics.latency.labels(get_route()).observe(time.perf_counter() - start)


def _reserve(folder: Path) -> None:
    """Allocates the files of a worker's counts, as a full disk would kill it later. An error: no room, or no folder."""
    if not folder.is_dir():
        raise ConfigError(f"{SHARED} is {folder}, which is no folder: make it, or unset the variable")
    for kind in ("counter", "gauge_livesum", "histogram"):
        file = folder / f"{kind}_{os.getpid()}.db"
        if file.exists():
            continue
        try:
            file.write_bytes(bytes(_ROOM))
        except OSError as error:
            file.unlink(missing_ok=True)
            raise PolyencoderError(
                f"{file}: cannot be written ({error.strerror}); make room, or let TMPDIR, or "
                f"{SHARED} if you have set it, name another folder"
            ) from None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # it belongs to another user
    return True
