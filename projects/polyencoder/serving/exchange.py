"""One request and its answer: the body within its bytes and its time, the answer within its own, or nothing is done."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyencoder.serving.config import Limits
from polyencoder.serving.problems import problem

__all__ = ["Exchange"]


class _TooLarge(Exception):
    """The body has more bytes than it may."""


class _Gone(Exception):
    """The client has hung up."""


class Exchange:
    """Answers 413 to a body that is too large, 408 to one that comes too slowly, 504 where the answer takes too long.

    The application gets the whole body, and is cancelled when its time is over or the client has gone: what it asked
    the model for is then dropped.
    """

    def __init__(self, app: ASGIApp, *, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        limits = self._limits
        try:
            body = await asyncio.wait_for(self._body(scope, receive), limits.read_seconds)
        except _TooLarge:
            answer = problem(413, f"the body has more than {limits.bytes:,} bytes: send less at once")
            return await answer(scope, receive, send)
        except asyncio.TimeoutError:
            slow = f"the body did not come within {limits.read_seconds:g} seconds"
            return await problem(408, slow, headers={"Connection": "close"})(scope, receive, send)
        except _Gone:
            return
        await self._answered(scope, body, receive, send)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        length = Headers(scope=scope).get("content-length", "0")  # a number, or uvicorn would have refused it
        if int(length) > self._limits.bytes:
            raise _TooLarge
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._limits.bytes:
                raise _TooLarge
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _answered(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        began = False
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def given() -> Message:
            return unread.pop() if unread else await receive()

        async def told(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        answering = asyncio.ensure_future(self._app(scope, given, told))
        leaving = asyncio.ensure_future(_left(receive))
        both = {answering, leaving}
        try:
            await asyncio.wait(both, timeout=self._limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if began and not answering.done():  # how long it may take to be read, the connection knows
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await answering
            elif not leaving.done():
                await _stop(answering)
                late = f"there was no answer within {self._limits.seconds:g} seconds; the work was dropped"
                await problem(504, late)(scope, receive, send)
        finally:
            await _stop(answering)
            await _stop(leaving)


async def _left(receive: Receive) -> None:
    """Until the client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(task: asyncio.Future[None]) -> None:
    """Cancel a task that has not ended, and wait until it has; what it raises is nobody's business any more."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
