"""What is too much or too slow has its answer, frees its resources, and the next request is served."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from polyencoder.serving.config import Limits
from polyencoder.serving.request_limits import has_more_values
from polyencoder.serving.run import HeaderLimit
from tests.polyencoder.serving.conftest import SECONDS

pytestmark = pytest.mark.slow

REQUEST = {"query": "hello", "documents": ["a", "b", "c"]}


def fine(client) -> None:
    """The server does what it is there for, and holds nothing that it should not."""
    answer = client.post("/v1/rerank", json=REQUEST)
    assert answer.status_code == 200, answer.text
    wait_for(lambda: not value(client, "polyencoder_requests_under_way"))
    wait_for(lambda: not value(client, "polyencoder_queued_tokens"))


def wait_for(condition) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def value(client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


class Slow:
    """Holds the model's passes back until it is told to let them go, and counts them."""

    def __init__(self, client) -> None:
        model = client.service.engine._model
        self._compute = model._compute
        model._compute = self
        self.passes = 0
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Event()

    def __call__(self, kind, tokens):
        self.entered.release()
        assert self.go_on.wait(SECONDS)
        self.passes += 1
        return self._compute(kind, tokens)


def connected(client) -> socket.socket:
    return socket.create_connection((client.base_url.host, client.base_url.port), timeout=SECONDS)


def closed(connection: socket.socket) -> bool:
    """Whether the server has hung up, waited for."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def post(path: str, body: bytes = b"", *, length: int | None = None) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body) if length is None else length}",
    ]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode() + body


def test_a_body_of_too_many_bytes_with_its_length_and_without(serve):
    client = serve("bi", records=None, limits=Limits(bytes=1000))
    body = b'{"query": "hello", "documents": ["' + b"a" * 1000 + b'"]}'
    answer = client.post("/v1/rerank", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert "1,000 bytes" in answer.json()["message"]
    chunks = iter([body[:400], body[400:800], body[800:]])
    answer = client.post("/v1/rerank", content=chunks, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    fine(client)


def test_each_limit_of_texts_says_which_one_it_is(serve):
    client = serve("bi", limits=Limits(documents=3, characters=50, tokens=40, top_k=10))
    long = "hello " * 10
    cases = [
        ("/v1/rerank", {"query": "a", "documents": ["a"] * 4}, "documents has 4 texts"),
        ("/v1/rerank", {"query": "a", "documents": ["a", long]}, "documents.1 has 60 characters"),
        ("/v1/rerank", {"query": long, "documents": ["a"]}, "query has 60 characters"),
        ("/v1/rerank", {"query": "a", "documents": ["x " * 10, "y " * 10, "z " * 10]}, "documents.1: up to it"),
        ("/v1/rerank", {"query": "a", "documents": ["x " * 25, "y"]}, "documents.0: up to it"),  # its passages
        ("/v1/rerank", {"query": "a " * 25, "documents": ["x " * 5, "y " * 5]}, "documents: up to it"),
        ("/v1/select", {"query": "a", "options": ["a"] * 4}, "options has 4 texts"),
        ("/v1/select", {"query": "a", "options": ["a", {"name": "x", "description": long}]}, "options.1 has 6"),
        ("/v1/select", {"query": "a", "options": ["x " * 10, "y " * 10, "z " * 10]}, "options.1: up to it"),
        ("/v1/embeddings", {"input": ["a", "b", long]}, "input.2 has 60 characters"),
        ("/v1/search", {"query": "a", "top_k": 11}, "top_k is 11"),
        ("/v1/chat", {"messages": [{"role": "user", "content": long}]}, "messages has 60 characters"),
    ]
    for route, body, says in cases:
        answer = client.post(route, json=body)
        assert answer.status_code == 422
        assert says in answer.json()["message"], (says, answer.text)
    fine(client)


def test_one_request_too_many_is_told_when_to_come_again(serve):
    client = serve("bi", records=None, limits=Limits(concurrent=2))
    slow = Slow(client)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(client.post, "/v1/rerank", json=REQUEST) for _ in range(2)]
        wait_for(lambda: value(client, "polyencoder_requests_under_way") == 2)
        refused = client.post("/v1/rerank", json=REQUEST)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert client.get("/health").status_code == 200
        slow.go_on.set()
        assert [future.result().status_code for future in waiting] == [200, 200]
    fine(client)


def test_an_answer_that_takes_too_long_is_given_up_and_its_work_dropped(serve):
    client = serve("bi", records=None, limits=Limits(seconds=0.3))
    slow = Slow(client)
    with ThreadPoolExecutor(3) as pool:
        late = [pool.submit(client.post, "/v1/rerank", json=REQUEST) for _ in range(3)]
        assert [future.result().status_code for future in late] == [504] * 3
    assert "0.3 seconds" in late[0].result().json()["message"]
    slow.go_on.set()
    wait_for(lambda: not value(client, "polyencoder_queued_tokens"))
    assert slow.passes <= 1  # that which had begun
    assert client.get("/ready").status_code == 200


def test_the_work_of_a_client_that_hangs_up_is_dropped(serve):
    client = serve("bi", records=None)
    slow = Slow(client)
    body = b'{"query": "hello", "documents": ["a", "b"]}'
    connections = [connected(client) for _ in range(5)]
    for connection in connections:
        connection.sendall(post("/v1/rerank", body))
    wait_for(lambda: value(client, "polyencoder_requests_under_way") == 5)
    assert slow.entered.acquire(timeout=SECONDS)
    for connection in connections:
        connection.close()
    wait_for(lambda: not value(client, "polyencoder_requests_under_way"))
    slow.go_on.set()
    fine(client)
    assert slow.passes <= 1 + 1 + 2  # what had begun, the next that was taken before, and the one that is fine


def test_a_body_that_comes_too_slowly_is_answered_408_and_holds_nothing(serve):
    client = serve("bi", records=None, limits=Limits(concurrent=1, read_seconds=0.4))
    with connected(client) as slow:
        slow.sendall(post("/v1/rerank", b'{"query": ', length=500))
        assert b" 408 " in slow.recv(1 << 16).partition(b"\r\n")[0]
        assert closed(slow)
    fine(client)


def test_a_body_that_is_announced_too_large_is_refused_before_it_comes(serve):
    client = serve("bi", records=None, keep_alive=1, limits=Limits(bytes=1000, concurrent=1))
    with connected(client) as connection:
        connection.sendall(post("/v1/rerank", b"a" * 100, length=1 << 40))
        assert b" 413 " in connection.recv(1 << 16).partition(b"\r\n")[0]
        fine(client)
        assert closed(connection)


def test_clients_that_send_no_headers_or_take_no_answer_hold_no_place(serve):
    """They hold a connection."""
    client = serve("bi", records=None, limits=Limits(concurrent=1, seconds=2))
    with contextlib.ExitStack() as stack:
        silent, half, blank = (stack.enter_context(connected(client)) for _ in range(3))
        blank.sendall(b"\r\n" * 100)
        half.sendall(b"POST /v1/rerank HTTP/1.1\r\nHost: loc")
        large = "x" * 7_500_000  # more than the buffers of any kernel between the two
        body = f'{{"query": "a", "documents": [{{"text": "a", "large": "{large}"}}], "return_documents": true}}'
        for _ in range(3):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(SECONDS)
            connection.connect((client.base_url.host, client.base_url.port))
            connection.sendall(post("/v1/rerank", body.encode()) + post("/v1/rerank", b"{}"))
            wait_for(lambda: not value(client, "polyencoder_requests_under_way"))
        fine(client)
        silent.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in silent.recv(1 << 16).partition(b"\r\n")[0]


def test_a_header_takes_no_longer_than_its_time_and_connections_are_not_counted(serve, monkeypatch):
    monkeypatch.setattr(HeaderLimit, "seconds", 1.5)
    client = serve("bi", records=None)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(client)) for _ in range(1100)]
        for connection in silent[1:]:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        assert client.get("/health").status_code == 200
        fine(client)
        for _ in range(5):  # more of a header does not prolong its time
            time.sleep(0.25)
            with contextlib.suppress(ConnectionError):
                silent[-1].sendall(b"a")
        assert all(closed(connection) for connection in silent)
    with connected(client) as patient:  # a header that came in time has no limit, nor has the next one's wait
        patient.sendall(post("/v1/rerank", json.dumps(REQUEST).encode()))
        assert b" 200 " in patient.recv(1 << 16).partition(b"\r\n")[0]
        patient.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        assert closed(patient)


@pytest.mark.parametrize("value", [[1] * 11, ["a,b"] * 11, {str(n): n for n in range(11)}, ["\\", '"', "\\\\"] * 4])
def test_the_values_of_json_are_counted_without_reading_it(value):
    text = json.dumps(value).encode()
    assert has_more_values(text, 10)
    assert not has_more_values(text, 12)
    assert not has_more_values(json.dumps(["[,{" * 100]).encode(), 1)
