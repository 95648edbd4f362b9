"""Refuses requests: beyond the limits, under a foreign name (DNS rebinding, cross-site requests), without the key."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyencoder.serving.config import LOOPBACK, Limits, ServerConfig
from polyencoder.serving.metrics import Metrics
from polyencoder.serving.page import PATHS
from polyencoder.serving.problems import problem

_RETRY_AFTER = "1"  # seconds


class RequestLimits:
    """ASGI middleware: answers 429, 413, 408 and 504 to requests beyond the limits.

    The application receives the whole body. It is cancelled after the time limit, or if the client disconnects; its
    items in the model's queue are then dropped.
    """

    def __init__(self, app: ASGIApp, *, limits: Limits, metrics: Metrics) -> None:
        self._app = app
        self._limits = limits
        self._metrics = metrics
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):  # which cost nothing
            return await self._app(scope, receive, send)
        if self._under_way >= self._limits.concurrent:
            full = f"{self._under_way} requests are in progress: try again later"
            return await problem(429, full, headers={"Retry-After": _RETRY_AFTER})(scope, receive, send)
        self._under_way += 1
        self._metrics.under_way.inc()
        try:
            with contextlib.suppress(_Disconnected):
                body = await self._body(scope, receive)
                if isinstance(body, Response):
                    await self._refuse(body, scope, receive, send)
                else:
                    await self._answer(scope, body, receive, send)
        finally:
            self._under_way -= 1
            self._metrics.under_way.dec()

    async def _body(self, scope: Scope, receive: Receive) -> bytes | Response:
        """Reads the body; returns an error answer if it is too large or too slow."""
        limits = self._limits
        too_many = problem(413, f"the body has more than {limits.values:,} values: send less per request")
        too_large = problem(413, f"the body has more than {limits.bytes:,} bytes: send less per request")
        if int(Headers(scope=scope).get("content-length", "0")) > limits.bytes:  # uvicorn refuses other values
            return too_large

        async def read() -> bytes | Response:
            body = bytearray()
            while len(body) <= limits.bytes:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Disconnected
                body += message.get("body", b"")
                if len(body) <= limits.bytes and not message.get("more_body", False):
                    return too_many if has_more_values(body, limits.values) else bytes(body)
            return too_large

        try:
            return await asyncio.wait_for(read(), limits.read_seconds)
        except asyncio.TimeoutError:
            slow = f"the body did not arrive within {limits.read_seconds:g} seconds"
            return problem(408, slow, headers={"Connection": "close"})

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        began = False
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body() -> Message:
            return unread.pop() if unread else await receive()

        async def send_answer(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        answering = asyncio.ensure_future(self._app(scope, receive_body, send_answer))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({answering, leaving}, timeout=self._limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await answering
            elif not leaving.done() and not began:
                await _cancelled(answering)
                post = scope["method"] == "POST"
                dropped = "the work was dropped" if post else "the change may still be made: send it again"
                late = f"there was no answer within {self._limits.seconds:g} seconds; {dropped}"
                await self._refuse(problem(504, late), scope, receive, send)
        finally:
            await _cancelled(answering)
            await _cancelled(leaving)

    async def _refuse(self, response: Response, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends an answer; gives up after some seconds if the client does not read it."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(response(scope, receive, send), self._limits.read_seconds)


def has_more_values(body: bytes | bytearray, most: int) -> bool:
    """Whether JSON has more values than this, by its quotes, commas and brackets; much faster than reading it."""
    if _count(body) <= most:  # in texts, too
        return False
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in body else body
    if plain.count(b'"') > 4 * most:  # around names and texts
        return True
    outside = b"".join(plain.split(b'"')[::2])
    return _count(outside) > most


def _count(body: bytes | bytearray) -> int:
    return len(body) - len(body.translate(None, b",[{"))


class _Disconnected(Exception):
    """The client has closed the connection."""


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(task: asyncio.Future[None]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})


_PROBES = frozenset({"/health", "/ready"})
"""Paths for load balancers, which send no key and any Host."""


class Access:
    """ASGI middleware: answers 400 to a foreign Host, 403 to a foreign Origin, 401 to a wrong key.

    Any web page open in a browser on this machine can reach a server on the loopback, through a name that resolves to
    127.0.0.1. Starlette's `TrustedHostMiddleware` supports neither `[::1]:8000` nor Origin.
    """

    def __init__(self, app: ASGIApp, *, config: ServerConfig) -> None:
        self._app = app
        self._key = None if config.api_key is None else config.api_key.encode()
        self._origins, self._root_path = config.allow_origins, config.root_path
        self._hosts: tuple[str, ...] | None = None  # any: the key protects the server, and no names were given
        if config.local or config.allow_hosts:
            own = () if config.host in ("0.0.0.0", "::") else (config.host,)
            self._hosts = tuple(name.lower() for name in (*LOOPBACK, *own, *config.allow_hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = None
        if scope["type"] == "http":
            scope["root_path"] = self._root_path  # which a proxy may remove, or leave
            refused = self._refused(scope["path"].removeprefix(self._root_path), Headers(scope=scope))
        await (refused or self._app)(scope, receive, send)

    def _refused(self, path: str, headers: Headers) -> Response | None:
        named = headers.getlist("host")
        host = _name(f"//{named[0]}") if len(named) == 1 else None
        if path not in _PROBES and (host is None or (self._hosts is not None and host not in self._hosts)):
            shown = f"{', '.join(named) or 'missing'}"
            return problem(400, f"Host is {shown:.100}, which is not a name of this server: allow_host adds names")
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins and _name(origin) not in (self._hosts or (host,)):
            return problem(
                403, f"Origin is {origin:.100}: pages of other sites may not use this server: allow_origin adds sites"
            )
        if self._key is None or path in _PROBES | PATHS:  # the page asks its user for the key
            return None
        kind, _, shown = headers.get("authorization", "").partition(" ")
        if hmac.compare_digest(shown.strip().encode("latin-1"), self._key) and kind.lower() == "bearer":
            return None
        wrong = "the key is wrong or missing: Authorization: Bearer KEY"
        return problem(401, wrong, headers={"WWW-Authenticate": "Bearer"})


def _name(url: str) -> str | None:
    """The host of a URL, without its port; None if it has none."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for an invalid port
        plain = parts.path in ("", "/") and not parts.query and parts.username is None
        return parts.hostname if plain else None
    except ValueError:
        return None
