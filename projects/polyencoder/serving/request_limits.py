"""`RequestLimits`: refuses requests that are too many, too large or too slow."""

from __future__ import annotations

import asyncio
import contextlib
import json

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyencoder.serving.config import Limits
from polyencoder.serving.metrics import Metrics
from polyencoder.serving.problems import build_response

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
            return await build_response(429, full, headers={"Retry-After": _RETRY_AFTER})(scope, receive, send)
        self._under_way += 1
        self._metrics.under_way.inc()
        try:
            with contextlib.suppress(_ClientDisconnect):
                body = await self._read_body(scope, receive)
                if isinstance(body, Response):
                    await self._refuse(body, scope, receive, send)
                else:
                    await self._answer(scope, body, receive, send)
        finally:
            self._under_way -= 1
            self._metrics.under_way.dec()

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes | Response:
        """Reads the body; returns an error answer if it is too large or too slow."""
        limits = self._limits
        too_many = build_response(413, f"the body has more than {limits.values:,} values: send less per request")
        too_large = build_response(413, f"the body has more than {limits.bytes:,} bytes: send less per request")
        if int(Headers(scope=scope).get("content-length", "0")) > limits.bytes:  # uvicorn refuses other values
            return too_large

        async def read() -> bytes | Response:
            body = bytearray()
            while len(body) <= limits.bytes:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _ClientDisconnect
                body += message.get("body", b"")
                if len(body) <= limits.bytes and not message.get("more_body", False):
                    if not (encoding := json.detect_encoding(body)).startswith("utf-8"):  # whose values are not counted
                        unread = f"the body cannot be read (it is {encoding}): send JSON in UTF-8, not compressed"
                        return build_response(422, unread)
                    return too_many if has_more_values(body, limits.values) else bytes(body)
            return too_large

        try:
            return await asyncio.wait_for(read(), limits.read_seconds)
        except asyncio.TimeoutError:
            slow = f"the body did not arrive within {limits.read_seconds:g} seconds"
            return build_response(408, slow, headers={"Connection": "close"})

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
        leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({answering, leaving}, timeout=self._limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await answering
            elif not leaving.done() and not began:
                await _cancel(answering)
                post = scope["method"] == "POST"
                dropped = "the work was dropped" if post else "the change may still be made: send it again"
                late = f"there was no answer within {self._limits.seconds:g} seconds; {dropped}"
                await self._refuse(build_response(504, late), scope, receive, send)
        finally:
            await _cancel(answering)
            await _cancel(leaving)

    async def _refuse(self, response: Response, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends an answer; gives up after some seconds if the client does not read it."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(response(scope, receive, send), self._limits.read_seconds)


def has_more_values(body: bytes | bytearray, limit: int) -> bool:
    """Whether JSON has more values than this, by its quotes, commas and brackets; much faster than reading it."""
    if _count(body) <= limit:  # in texts, too
        return False
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in body else body
    if plain.count(b'"') > 4 * limit:  # around names and texts
        return True
    outside = b"".join(plain.split(b'"')[::2])
    return _count(outside) > limit


def _count(body: bytes | bytearray) -> int:
    return len(body) - len(body.translate(None, b",[{"))


class _ClientDisconnect(Exception):
    """The client has closed the connection."""


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Future[None]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
