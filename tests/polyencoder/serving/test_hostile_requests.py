"""Garbage, nonsense and huge requests: each has its answer, and the others do not wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time

import httpx
import pytest

from polyencoder.serving.config import Limits, ServerConfig
from polyencoder.serving.engine import Engine
from polyencoder.serving.forward import Forward
from polyencoder.serving.service import Service
from tests.parameters import mostly_long
from tests.polyencoder.serving.conftest import SECONDS, running
from tests.polyencoder.serving.test_request_limits import closed, connected, fine

pytestmark = pytest.mark.slow


@pytest.fixture
def longest(monkeypatch):
    """The processor time of the longest steps of the event loop and of the tokenizer's thread, by name."""
    seconds = {"loop": 0.0, "tokenizer": 0.0}

    def timed(name, call):
        start = time.thread_time()
        try:
            return call()
        finally:
            seconds[name] = max(seconds[name], time.thread_time() - start)

    run, tokenize = asyncio.events.Handle._run, Engine.tokenize
    monkeypatch.setattr(asyncio.events.Handle, "_run", lambda self: timed("loop", lambda: run(self)))
    monkeypatch.setattr(Engine, "tokenize", lambda self, call: tokenize(self, lambda: timed("tokenizer", call)))
    gc.freeze()  # or a step may pay for a collection of what all tests before have left
    yield seconds
    gc.unfreeze()


def tools(count: int, parameters: int) -> list[dict]:
    schema = {"properties": {f"p{n}": {"type": "string", "description": "x y z"} for n in range(parameters)}}
    return [{"name": f"t{n}", "description": "d", "inputSchema": schema} for n in range(count)]


@mostly_long(
    ("route", "body", "status"),
    [
        ("search", {"query": "a", "filter": {"lang": list(range(900_000))}}, 413),
        ("search", {"query": "a", "filter": {"lang": [f"text {n}" for n in range(1000)]}}, 200),
        ("search", {"messages": [{"role": "user", "content": "hello"}] * 9_000}, 422),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 9_000}]}, 422),
        ("rerank", {"query": "a", "documents": ["hello"] * 29_000}, 422),
        ("rerank", {"query": "a", "documents": [[]] * 600_000}, 413),
        ("embeddings", {"input": [1.5] * 29_000}, 422),
        ("select", {"query": "a", "options": tools(200, 40)}, 200),
        ("search", {"query": "a", "filter": {"lang": [f"text {n}" for n in range(400_000)]}}, 413),
        ("search", {"query": "a", "filter": {"lang": list(range(29_000))}}, 422),
        ("search", {"query": "a", "filter": {str(n): n for n in range(990)}}, 422),
        ("search", {"messages": [{"role": "user", "content": "hello"}] * 100_000}, 413),
        ("chat", {"messages": [{"role": "user", "content": "hello"}] * 1000}, 200),
        ("rerank", {"query": "a", "documents": [1] * 29_000}, 422),
        ("embeddings", {"input": ["hello"] * 1000}, 200),
        ("select", {"query": "a", "options": tools(900, 150)}, 413),
    ],
    quick=8,
)
def test_no_request_keeps_the_others_waiting(serve, longest, route, body, status):
    client = serve("bi")
    content = json.dumps(body).encode()
    for _ in range(3):  # on a busy machine a step takes longer
        longest |= {"loop": 0.0, "tokenizer": 0.0}
        start = time.thread_time()
        sum(range(10**6))
        limit = 2 * (time.thread_time() - start)  # 50 ms, on a machine that takes 25 for that
        answer = client.post(f"/v1/{route}", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == status, answer.text[:500]
        if max(longest.values()) < limit:
            return
    pytest.fail(f"{longest}, limit {limit}")


@pytest.fixture(scope="module")
def impatient(make_ranker):
    """A client of a server that waits 0.4 s for a request's head and body."""
    config = ServerConfig(model="tiny", port=0, limits=Limits(read_seconds=0.4))
    service = Service.from_config(config, Forward(make_ranker("bi")), index=None)
    with running(service, keep_alive=1) as url, httpx.Client(base_url=url, timeout=SECONDS) as client:
        yield client


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/rerank HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/rerank HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    ],
)
def test_garbage_on_a_connection(impatient, sent):
    with connected(impatient) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
        assert closed(connection)
    fine(impatient)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"query": "\\ud83d", "documents": ["a"]}',
        b'{"query": "a", "documents": ["\\ud83d"]}',
        b'{"query": "a", "filter": {"n": NaN}}',
        b'{"query": "a", "top_k": 1e400}',
        b'{"query": "a", "documents": {"a": 1}}',
        b"null",
        b'{"query": "a", "documents": ["a"], "top_n": 10000000000000000000000000000000000000000000}',
    ],
)
@pytest.mark.parametrize("route", ["/v1/rerank", "/v1/search", "/v1/chat", "/v1/embeddings"])
def test_nonsense_in_a_body(shared, route, body):
    answer = shared.post(route, content=body, headers={"Content-Type": "application/json"})
    if not (answer.status_code == 200 and b"top_n" in body):  # as many as there are
        assert answer.status_code in (400, 422), answer.text
        assert answer.json()["message"]
