"""How many requests are under way at most, and a count of all of them."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyencoder.serving.metrics import Metrics
from polyencoder.serving.problems import problem

__all__ = ["Admission", "Counted"]

_WAIT = 1  # seconds after which a client may try again


class Admission:
    """Answers 429 to a request that asks for work while `most` are under way. GET is no work."""

    def __init__(self, app: ASGIApp, *, most: int, metrics: Metrics) -> None:
        self._app = app
        self._most = most
        self._metrics = metrics
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            return await self._app(scope, receive, send)
        if self._under_way >= self._most:
            full = f"{self._most} requests are under way already: try again in a while"
            return await problem(429, full, headers={"Retry-After": str(_WAIT)})(scope, receive, send)
        self._under_way += 1
        self._metrics.under_way.inc()
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1
            self._metrics.under_way.dec()


class Counted:
    """Counts answers by route and status, and how long they took."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start = time.perf_counter()
        status = "none"

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, told)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # what clients make up would be labels without end
            self._metrics.requests.labels(route, status).inc()
            self._metrics.latency.labels(route).observe(time.perf_counter() - start)
