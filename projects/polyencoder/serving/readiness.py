"""`SharedCall`: one call of the index at a time (`/ready`, `/info`), whose result concurrent requests share."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from polyencoder.errors import PolyencoderError

T = TypeVar("T")


class SharedCall(Generic[T]):
    """A call that may hang, for example if Milvus is unreachable. Concurrent requests wait for the same result.

    It runs in a daemon thread: a hanging call would block a thread of a pool, and the process could not end.

    Args:
        seconds: the time limit; after it each request is an error until the call returns.
    """

    def __init__(self, call: Callable[[], T], *, seconds: float) -> None:
        self._call = call
        self._seconds = seconds
        self._result: Future[T] | None = None
        self._due = 0.0

    async def __call__(self) -> T:
        """The result. Raises PolyencoderError after the time limit, and the errors of the call."""
        if self._result is None or self._result.done():
            self._result = Future()
            self._result.set_running_or_notify_cancel()  # a request that stops waiting does not cancel it
            self._due = time.monotonic() + self._seconds
            threading.Thread(target=self._run, args=[self._result], name="polyencoder-index", daemon=True).start()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._result), self._due - time.monotonic())
        except asyncio.TimeoutError:
            late = f"the index has not answered within {self._seconds:g} seconds"
            raise PolyencoderError(late, public=late) from None

    def _run(self, result: Future[T]) -> None:
        try:
            value = self._call()
        except BaseException as error:
            result.set_exception(error)
        else:
            result.set_result(value)
