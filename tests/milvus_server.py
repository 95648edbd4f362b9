"""A Milvus server for tests, of the package `milvus` (standalone, a program of its own)."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class RealMilvus:
    """A server with its data in this folder, up in some ten seconds. A machine can run one: etcd's port is fixed."""

    def __init__(self, folder: str) -> None:
        from milvus import MilvusServer, MilvusServerConfig

        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._server: Any = MilvusServer(MilvusServerConfig(data_dir=folder, proxy_port=port))
        self.address = f"milvus:http://127.0.0.1:{port}"
        self.start()
        # started again it has its ports, which the package would find in use for a minute
        self._server.config.resolve = lambda: None

    def start(self) -> None:
        self._server.start()

    def crash(self) -> None:
        """End it as where the machine loses power."""
        self._server.server_proc.kill()
        self._server.server_proc.wait()
        self._server.stop()


@contextmanager
def real_milvus() -> Iterator[RealMilvus]:
    """A server that ends, and whose data go, with the block."""
    with tempfile.TemporaryDirectory(prefix="milvus-", ignore_cleanup_errors=True) as folder:
        server = RealMilvus(folder)
        try:
            yield server
        finally:
            server._server.stop()
