"""A time limit for the header of a request: connections that send none, or half of one, are closed."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class HeaderLimit(H11Protocol):
    """uvicorn's protocol; its own limits are of idle connections alone."""

    seconds = 10.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def _limit(self) -> None:
        """Starts the time when a header is awaited; data in between do not prolong it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._close)

    def _close(self) -> None:
        self._timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
