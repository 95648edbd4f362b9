"""`serve`: binds an address and runs uvicorn, with one worker or several."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.supervisors import Multiprocess

from polyencoder.errors import ConfigError
from polyencoder.serving.app import create_app
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.metrics import SHARED
from polyencoder.serving.service import Service
from polyencoder.storage.temporary import TemporaryFolder

_HTTP_SETTINGS = frozenset({"host", "port", "allow_host", "allow_origin", "root_path", "workers"}) | {
    *("feedback", "no_answer", "max_concurrent", "max_bytes", "timeout", "drain_seconds")
}
_LAST_ROUNDS, _ROUND_SECONDS = 10, 0.02  # of the event loop: it accepts in one, and reads in a later one
_STARTING = 60  # seconds for a worker to start, on a busy machine too


def serve(config: ServerConfig, *, listening: Callable[[str], object] = lambda url: None) -> None:
    """Serves until SIGINT or SIGTERM; then finishes open requests. MCP over stdio ends when its client does.

    Args:
        listening: called with the URL once the socket listens. Requests wait until the model is warm.

    Raises:
        PolyencoderError: the model, the index or the address cannot be used.
    """
    if config.mcp == "stdio":
        return _serve_stdio(config)
    _, max_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))  # idle connections are open files, too
    if config.port:
        bind(config).close()  # a used port is an error before the model is loaded
    with TemporaryFolder() as folder:
        service = Service.load(config)
        app = create_app(service)
        with bind(config) as listener:
            host = f"[{config.host}]" if ":" in config.host else config.host
            listening(f"http://{host}:{listener.getsockname()[1]}")
            if config.workers == 1:
                options = build_uvicorn_config(config, partial(delay_signals, app))
                uvicorn.Server(options).run(sockets=[listener])
                return
            service.close()  # loaded only to report errors early; each worker loads its own
            del app, service
            os.environ[SHARED] = folder
            options = build_uvicorn_config(config, partial(_create_worker, config))
            Multiprocess(options, sockets=[listener]).run()


def _serve_stdio(config: ServerConfig) -> None:
    if unread := sorted(config.explicit & _HTTP_SETTINGS):
        raise ConfigError(
            f"{unread[0]} is of the HTTP server, which mcp stdio does not start: leave it out, or give mcp http",
            argument=unread[0],
        )
    from polyencoder.serving.mcp import serve_stdio  # of an extra

    with closing(Service.load(config)) as service:
        serve_stdio(service)


def build_uvicorn_config(config: ServerConfig, create: Callable[[], ASGIApp]) -> uvicorn.Config:
    """Returns uvicorn's configuration for the application that a function creates."""
    return uvicorn.Config(
        create,
        factory=True,
        workers=config.workers,
        http=HeaderLimit,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(config.limits.drain_seconds)),
        timeout_worker_healthcheck=_STARTING,
    )


def delay_signals(app: ASGIApp) -> ASGIApp:
    """Lets SIGINT and SIGTERM end the server in this event loop only when it has read what came before; returns `app`.

    uvicorn closes its socket at once, and the system resets the connections that were not accepted and the requests
    that were not read: on a busy machine those of the last second.
    """
    if threading.current_thread() is not threading.main_thread():  # where uvicorn has no handlers either
        return app
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(end := signal.getsignal(number)):  # the loop's own handlers would leave none when it closes
            signal.signal(number, partial(_delay_end, loop, end))
    return app


def _delay_end(
    loop: asyncio.AbstractEventLoop,
    end: Callable[[int, FrameType | None], object],
    number: int,
    frame: FrameType | None,
) -> None:
    def wait(rounds: int) -> None:
        if rounds:
            loop.call_later(_ROUND_SECONDS, wait, rounds - 1)
        else:
            end(number, None)

    loop.call_soon_threadsafe(wait, _LAST_ROUNDS)


def _create_worker(config: ServerConfig) -> ASGIApp:
    def end_with_parent() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    return create_app(Service.load(config))


def bind(config: ServerConfig) -> socket.socket:
    """Returns a socket that listens on the address. ConfigError if that fails."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # Explicit, as asyncio turns off Nagle's algorithm (40 ms an answer) only for sockets with this protocol.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
        listener.listen()  # two sockets that do not listen yet may have one port; uvicorn sets the backlog
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {config.host}, port {config.port} ({error.strerror or error}): give another address",
            argument="port",
        ) from None
    return listener


class HeaderLimit(H11Protocol):
    """uvicorn's protocol; its own limits apply to idle connections alone."""

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
