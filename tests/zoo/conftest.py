"""What the zoo's tests share: a local server whose files can be continued, and archives for it."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from parlai.zoo.polyencoder import fetch as fetching


class _Server(ThreadingHTTPServer):
    """Gives `files`, path -> bytes. Each answer takes one of `breaks`: the number of bytes after which it ends."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.breaks: list[int] = []
        self.statuses: list[int] = []  # errors to answer with first
        self.requests: list[str | None] = []  # the ranges that were asked for
        self.knows_ranges = True
        self.has_version = True

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        asked_range = self.headers.get("Range")
        self.server.requests.append(asked_range)
        data = self.server.files.get(self.path)
        if data is None or self.server.statuses:
            self.send_error(404 if data is None else self.server.statuses.pop(0))
            return
        version = f'"{hashlib.md5(data).hexdigest()}"'
        match = re.fullmatch(r"bytes=(\d+)-", asked_range or "")
        start = int(match[1]) if match and self.server.knows_ranges and self.headers["If-Range"] == version else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        if self.server.has_version:
            self.send_header("ETag", version)
        self.end_headers()
        self.wfile.write(data[start : start + self.server.breaks.pop(0)] if self.server.breaks else data[start:])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    """A running server, empty. Nothing waits before another try."""
    monkeypatch.setattr(fetching, "PAUSE", 0.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    running = _Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.fixture(scope="session")
def pack():
    """(members) -> a `.tgz` archive; a member is a path in it, with bytes or a `TarInfo` of another type."""

    def make(members: dict[str, bytes | tarfile.TarInfo]) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, content in members.items():
                info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
                info.name = name
                data = content if isinstance(content, bytes) else b""
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return buffer.getvalue()

    return make


@pytest.fixture(scope="session")
def tree():
    """(folder) -> the paths of all files below it, hidden ones too, except locks."""

    def paths(folder: Path) -> list[str]:
        files = (path for path in Path(folder).rglob("*") if path.is_file() and path.name != ".lock")
        return sorted(str(path.relative_to(folder)) for path in files)

    return paths
