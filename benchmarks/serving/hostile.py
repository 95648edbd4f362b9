"""Misbehaving clients: half-open, slow, oversized or garbage requests; each client repeats one kind."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable

_PAUSE = 0.05  # seconds between two attempts of a client

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def misbehave(number: int, port: int, path: str, seen: Counter[str]) -> None:
    """Run hostile client `number` until it is cancelled; count its answers by kind and status."""
    name = list(KINDS)[number % len(KINDS)]
    rng = random.Random(number)
    for attempt in itertools.count():
        got = "closed"
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                await KINDS[name]((reader, writer), path, rng, attempt)
                if line := await reader.readline():
                    got = line.split()[1].decode("latin-1")
            finally:
                writer.close()
        except (OSError, IndexError):
            pass
        seen[f"{name}: {got}"] += 1
        await asyncio.sleep(_PAUSE)


async def _half_open(streams: Streams, path: str, rng: random.Random, attempt: int) -> None:
    """Says half of the headers, or half of a body, or nothing, and no more."""
    said = [head(path, 500)[:50], head(path, 500) + b'{"query": "hi', b""]
    await _send(streams, said[attempt % len(said)])


async def _slow(streams: Streams, path: str, rng: random.Random, attempt: int) -> None:
    """A byte at a time, which would take minutes."""
    for byte in head(path, 500) + b'{"query": "hi"':
        await _send(streams, bytes([byte]))
        await asyncio.sleep(0.2)


async def _oversized(streams: Streams, path: str, rng: random.Random, attempt: int) -> None:
    """More bytes than are taken, promised or in chunks; or more documents."""
    kind = attempt % 3
    if kind == 0:
        await _send(streams, head(path, 1 << 34) + b"x" * 1_000)
    elif kind == 1:
        chunked = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        await _send(streams, chunked.encode())
        for _ in range(1 << 9):  # 32 MB, if they were taken
            await _send(streams, b"10000\r\n" + b"x" * (1 << 16) + b"\r\n")
    else:
        body = b'{"query": "hi", "documents": [' + b", ".join([b'"a"'] * 20_000) + b"]}"
        await _send(streams, head(path, len(body)) + body)


async def _garbage(streams: Streams, path: str, rng: random.Random, attempt: int) -> None:
    """No HTTP, no JSON, or JSON of another shape; or hangs up when it has asked."""
    kind = attempt % 4
    if kind == 0:
        await _send(streams, rng.randbytes(2_000) + b"\r\n\r\n")
    elif kind == 3:
        body = b'{"query": "hi", "documents": ["never read"]}'
        await _send(streams, head(path, len(body)) + body)
        streams[1].transport.abort()
    else:
        body = b'{"query": "hi", "documents' if kind == 1 else b'{"query": [[]], "documents": {"a": NaN}}'
        await _send(streams, head(path, len(body)) + body)


KINDS: dict[str, Callable[[Streams, str, random.Random, int], Awaitable[None]]] = {
    "half-open": _half_open,
    "slow": _slow,
    "oversized": _oversized,
    "garbage": _garbage,
}


async def _send(streams: Streams, data: bytes) -> None:
    streams[1].write(data)
    await streams[1].drain()


def head(path: str, length: int) -> bytes:
    """The headers of a request whose JSON body has `length` bytes."""
    lines = (f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {length}")
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()
