"""`serve`: binds an address and runs uvicorn, with one worker or several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from polyencoder.errors import ConfigError
from polyencoder.serving.app import create_app
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.metrics import SHARED
from polyencoder.serving.service import Service
from polyencoder.storage.temporary import TemporaryFolder

_STARTING = 300  # seconds in which a worker has to begin: importing torch takes long on a busy machine

__all__ = ["bound", "serve", "uvicorn_config"]


def serve(config: ServerConfig, *, listening: Callable[[str], object] = lambda url: None) -> None:
    """Serves until SIGINT or SIGTERM; then finishes open requests.

    Args:
        config: see `ServerConfig`.
        listening: called with the URL once the address is bound. Requests are answered when the model is warm.

    Raises:
        PolyencoderError: the model or the index cannot be used, or the address cannot.
    """
    config = replace(config, threads=config.threads or max(1, torch.get_num_threads() // config.workers))
    with TemporaryFolder() as folder:
        if config.index is not None and config.sessions is None:
            config = replace(config, sessions=str(Path(folder) / "sessions.sqlite"))  # which workers share
        service = Service.load(config)
        app = create_app(service)
        with bound(config) as listener:
            host = f"[{config.host}]" if ":" in config.host else config.host
            listening(f"http://{host}:{listener.getsockname()[1]}")
            if config.workers == 1:
                uvicorn.Server(uvicorn_config(config, app)).run(sockets=[listener])
                return
            service.close()  # it was loaded to find what is wrong; each worker loads its own
            del app, service
            os.environ[SHARED] = folder
            told = uvicorn_config(config, partial(_worker, config), factory=True)
            Multiprocess(told, sockets=[listener]).run()


def uvicorn_config(config: ServerConfig, app: Callable[..., Any], *, factory: bool = False) -> uvicorn.Config:
    """The configuration of uvicorn for an application or, with `factory`, for a function that makes one."""
    return uvicorn.Config(
        app,
        factory=factory,
        workers=config.workers,
        limit_concurrency=config.limits.connections,
        http="h11",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(config.limits.drain_seconds)),
        timeout_worker_healthcheck=_STARTING,
    )


def _worker(config: ServerConfig) -> ASGIApp:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return create_app(Service.load(config))


def _end_with_parent() -> None:
    """Ends this worker, as SIGTERM does, when its parent has died, which may have been killed."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def bound(config: ServerConfig) -> socket.socket:
    """Binds a socket to the address. ConfigError if that fails."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # Named, as asyncio turns Nagle's algorithm off (40 ms an answer) only for sockets that say they speak TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {config.host}, port {config.port} ({error.strerror or error}): give another address",
            argument="port",
        ) from None
    return listener
