"""Whether the index can be searched now, as `/ready` asks: by one check at a time, however many ask."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from polyencoder.errors import PolyencoderError
from polyencoder.index.base import Index

__all__ = ["Readiness"]


class Readiness:
    """Checks of an index, of which one is in progress at most: whoever asks meanwhile is given its outcome.

    Args:
        index: None where the server has none, which is always ready.
        seconds: within which a check has to end. After that the index counts as away until it does.
    """

    def __init__(self, index: Index | None, *, seconds: float) -> None:
        self._index = index
        self._seconds = seconds
        self._check: Future[None] | None = None
        self._due = 0.0

    async def check(self) -> None:
        """Return if the index can be searched.

        Raises:
            PolyencoderError: it cannot, or does not answer in time.
        """
        if self._index is None:
            return
        if self._check is None or self._check.done():
            self._check = _in_thread(self._index.check_searchable)
            self._due = time.monotonic() + self._seconds
        try:
            await asyncio.wait_for(asyncio.wrap_future(self._check), self._due - time.monotonic())
        except asyncio.TimeoutError:
            raise PolyencoderError(f"the index has not answered within {self._seconds:g} seconds") from None


def _in_thread(call: Callable[[], None]) -> Future[None]:
    """The outcome of a call, which nothing cancels, in a thread of its own, for which a server that ends does not wait.

    A pool would have a call that hangs keep one of its threads, and the end of the process wait for it.
    """
    outcome: Future[None] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            call()
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    threading.Thread(target=run, name="polyencoder-readiness", daemon=True).start()
    return outcome
