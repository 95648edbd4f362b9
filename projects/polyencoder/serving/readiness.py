"""Whether the index can be searched now (`/ready`), and its number of candidates (`/info`).

One check of each kind runs at a time; concurrent requests share its result.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from polyencoder.errors import PolyencoderError
from polyencoder.index.base import Index

__all__ = ["Readiness"]

T = TypeVar("T")


class Readiness:
    """What an index says of itself.

    Args:
        index: None where the server has none, which is always ready.
        seconds: within which the index has to answer. After that it counts as away until it does.
    """

    def __init__(self, index: Index | None, *, seconds: float) -> None:
        self._check = None if index is None else _Question(lambda: index.check_searchable(), seconds=seconds)
        self._count = None if index is None else _Question(lambda: len(index), seconds=seconds)

    async def check(self) -> None:
        """Return if the index can be searched.

        Raises:
            PolyencoderError: it cannot, or does not answer in time.
        """
        if self._check is not None:
            await self._check.answer()

    async def count(self) -> int | None:
        """How many candidates the index has; None if there is no index. PolyencoderError as of `check`."""
        return None if self._count is None else await self._count.answer()


class _Question(Generic[T]):
    """A call of which one is in progress at most: whoever asks meanwhile is given its outcome."""

    def __init__(self, call: Callable[[], T], *, seconds: float) -> None:
        self._call = call
        self._seconds = seconds
        self._outcome: Future[T] | None = None
        self._due = 0.0

    async def answer(self) -> T:
        """What the call gives. PolyencoderError if it does not in time."""
        if self._outcome is None or self._outcome.done():
            self._outcome = _in_thread(self._call)
            self._due = time.monotonic() + self._seconds
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._outcome), self._due - time.monotonic())
        except asyncio.TimeoutError:
            raise PolyencoderError(f"the index has not answered within {self._seconds:g} seconds") from None


def _in_thread(call: Callable[[], T]) -> Future[T]:
    """The outcome of a call, which nothing cancels, in a thread of its own, for which a server that ends does not wait.

    A pool would have a call that hangs keep one of its threads, and the end of the process wait for it.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    threading.Thread(target=run, name="polyencoder-readiness", daemon=True).start()
    return outcome
