"""HTTP clients in a closed loop, in a separate process: each sends its next request as soon as it is answered.

Each keeps its connection and implements only the HTTP that it needs, since a library's client would take processor time
from the server.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

_PATIENCE = 180.0  # seconds for one answer; a request that takes longer is lost


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests to a server at 127.0.0.1 and the clients that send them, each once."""

    port: int
    path: str
    bodies: list[bytes]
    clients: int
    seconds: float
    """After them no client sends another request."""


@dataclass
class Outcome:
    """Seconds of each answer, seconds in all, and the counts of other outcomes than a complete 200."""

    seconds: list[float] = field(default_factory=list)
    wall: float = 0.0
    lost: Counter[str] = field(default_factory=Counter)

    def add(self, other: Outcome) -> None:
        """Add the counts of a later outcome."""
        self.seconds += other.seconds
        self.wall += other.wall
        self.lost += other.lost


def ask(load: Load) -> Outcome:
    """Run the clients and wait for all answers."""
    return asyncio.run(_ask(load))


async def _ask(load: Load) -> Outcome:
    outcome = Outcome()
    bodies = iter(load.bodies)
    start = time.perf_counter()
    await asyncio.gather(*(_run_client(load, bodies, start + load.seconds, outcome) for _ in range(load.clients)))
    outcome.wall = time.perf_counter() - start
    return outcome


async def _run_client(load: Load, bodies: Iterator[bytes], until: float, outcome: Outcome) -> None:
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    try:
        while time.perf_counter() < until and (body := next(bodies, None)) is not None:
            start = time.perf_counter()
            try:
                if connection is None:
                    connection = await asyncio.open_connection("127.0.0.1", load.port)
                request = build_head(load.path, len(body)) + body
                status = await asyncio.wait_for(_answer(*connection, request), _PATIENCE)
            except (OSError, EOFError, ValueError, LookupError, asyncio.TimeoutError) as error:
                outcome.lost[type(error).__name__] += 1
                _close(connection)
                connection = None
                continue
            if status == 200:
                outcome.seconds.append(time.perf_counter() - start)
            else:
                outcome.lost[str(status)] += 1
    finally:
        _close(connection)


def build_head(path: str, length: int) -> bytes:
    """The headers of a request whose JSON body has `length` bytes."""
    lines = (f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {length}")
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Read a complete answer and return its status."""
    writer.write(request)
    await writer.drain()
    status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    lengths = [line.split(":")[1] for line in headers if line.lower().startswith("content-length:")]
    await reader.readexactly(int(lengths[0]))
    return int(status.split()[1])


def _close(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None) -> None:
    if connection is not None:
        connection[1].close()
