"""Connections that do not wait for ever for their clients: uvicorn's, with a limit for headers, leftovers and reading.

uvicorn closes a connection that is idle after an answer. One on which nothing ever came, or half of the headers, or
whose client does not take its answer, it would keep.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from polyencoder.serving.config import Limits

__all__ = ["Connection", "UvicornConfig"]


class UvicornConfig(uvicorn.Config):
    """uvicorn's, with the limits of a `Connection`, which it makes for each client."""

    def __init__(self, app: Any, *, limits: Limits, **kwargs: Any) -> None:
        super().__init__(app, http=Connection, limit_concurrency=limits.connections, **kwargs)
        self.limits = limits


class Connection(H11Protocol):
    """Ends, without another word, a connection whose client is too slow to send or to take what it has to."""

    def __init__(self, config: UvicornConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.limits = config.limits
        self._sends: asyncio.TimerHandle | None = None
        self._takes: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_client()

    def data_received(self, data: bytes) -> None:
        self._await_client()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE and not self._answered_early:
            self._sends = _stop(self._sends)  # headers are here; the body's time is the application's business

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._answered_early:
            self._await_client()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._takes is None:
            self._takes = self.loop.call_later(self.limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._takes = _stop(self._takes)

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():  # closing would wait until that is taken
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        self._sends, self._takes = _stop(self._sends), _stop(self._takes)
        super().connection_lost(exc)

    @property
    def _answered_early(self) -> bool:
        """Whether a body still comes for which there is an answer already."""
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _await_client(self) -> None:
        """From now on, if not already, the client has its time to send what it has begun."""
        if self._sends is None:
            self._sends = self.loop.call_later(self.limits.read_seconds, self.transport.abort)


def _stop(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Stop a timer, if there is one; then there is none."""
    if timer is not None:
        timer.cancel()
    return None
