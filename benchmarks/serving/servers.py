"""Servers as processes of their own, which end with the block that needed them."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_STARTING = 300  # seconds
_ENDING = 60


class Server(NamedTuple):
    """A process that listens at 127.0.0.1."""

    port: int
    pid: int


@contextlib.contextmanager
def start_server(*arguments: str, path: str, python: str = sys.executable) -> Iterator[Server]:
    """A server, `python arguments`, that prints its URL, once it answers at `path`.

    Raises SystemExit with what it printed last if it ends before.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as file:
            process = subprocess.Popen([python, *arguments], stdout=file, stderr=file)
        try:
            yield Server(_wait_until_ready(process, log, path), process.pid)
        finally:
            process.terminate()
            try:
                process.wait(_ENDING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path, path: str) -> int:
    until = time.monotonic() + _STARTING
    while process.poll() is None and time.monotonic() < until:
        if match := re.search(r"serving .*on http://127\.0\.0\.1:(\d+)", log.read_text(errors="replace")):
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{match[1]}{path}", timeout=5).close()
                return int(match[1])
        time.sleep(0.1)
    output = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    raise SystemExit(f"a server of this benchmark did not start: {output[-1]}")
