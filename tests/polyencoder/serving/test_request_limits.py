"""What is too much, too slow or nonsense: each has its answer, frees its resources, and the next request is served."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from polyencoder.errors import ConfigError
from polyencoder.serving.config import Limits, ServerConfig
from polyencoder.serving.engine import Engine
from polyencoder.serving.forward import Forward
from polyencoder.serving.request_limits import has_more_values
from polyencoder.serving.run import HeaderLimit
from polyencoder.serving.service import Service
from tests.parameters import mostly_long
from tests.polyencoder.serving.conftest import SECONDS, running

pytestmark = pytest.mark.slow

ASKED = {"query": "hello", "documents": ["a", "b", "c"]}


def fine(client) -> None:
    """The server does what it is there for, and holds nothing that it should not."""
    answer = client.post("/v1/rerank", json=ASKED)
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
        waiting = [pool.submit(client.post, "/v1/rerank", json=ASKED) for _ in range(2)]
        wait_for(lambda: value(client, "polyencoder_requests_under_way") == 2)
        refused = client.post("/v1/rerank", json=ASKED)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert client.get("/health").status_code == 200
        slow.go_on.set()
        assert [one.result().status_code for one in waiting] == [200, 200]
    fine(client)


def test_an_answer_that_takes_too_long_is_given_up_and_its_work_dropped(serve):
    client = serve("bi", records=None, limits=Limits(seconds=0.3))
    slow = Slow(client)
    with ThreadPoolExecutor(3) as pool:
        late = [pool.submit(client.post, "/v1/rerank", json=ASKED) for _ in range(3)]
        assert [one.result().status_code for one in late] == [504] * 3
    assert "0.3 seconds" in late[0].result().json()["message"]
    slow.go_on.set()
    wait_for(lambda: not value(client, "polyencoder_queued_tokens"))
    assert slow.passes <= 1  # that which had begun
    assert client.get("/ready").status_code == 200


def test_the_work_of_a_client_that_hangs_up_is_dropped(serve):
    client = serve("bi", records=None)
    slow = Slow(client)
    body = b'{"query": "hello", "documents": ["a", "b"]}'
    gone = [connected(client) for _ in range(5)]
    for connection in gone:
        connection.sendall(post("/v1/rerank", body))
    wait_for(lambda: value(client, "polyencoder_requests_under_way") == 5)
    assert slow.entered.acquire(timeout=SECONDS)
    for connection in gone:
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
    client = serve("bi", records=None, limits=Limits(bytes=1000, concurrent=1))
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
    monkeypatch.setattr(HeaderLimit, "seconds", 3.0)
    client = serve("bi", records=None)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(client)) for _ in range(1100)]
        for connection in silent[1:]:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        assert client.get("/health").status_code == 200
        fine(client)
        for _ in range(5):  # more of a header does not prolong its time
            time.sleep(0.5)
            with contextlib.suppress(ConnectionError):
                silent[-1].sendall(b"a")
        assert all(closed(connection) for connection in silent)
    with connected(client) as patient:  # a header that came in time has no limit, nor has the next one's wait
        patient.sendall(post("/v1/rerank", json.dumps(ASKED).encode()))
        assert b" 200 " in patient.recv(1 << 16).partition(b"\r\n")[0]
        patient.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        assert closed(patient)


@pytest.fixture
def longest(monkeypatch):
    """The processor time of the longest steps of the event loop and of the tokenizer's thread, by name."""
    taken = {"loop": 0.0, "tokenizer": 0.0}

    def timed(name, call):
        start = time.thread_time()
        try:
            return call()
        finally:
            taken[name] = max(taken[name], time.thread_time() - start)

    run, tokenized = asyncio.events.Handle._run, Engine.tokenized
    monkeypatch.setattr(asyncio.events.Handle, "_run", lambda self: timed("loop", lambda: run(self)))
    monkeypatch.setattr(Engine, "tokenized", lambda self, call: tokenized(self, lambda: timed("tokenizer", call)))
    gc.freeze()  # or a step may pay for a collection of what all tests before have left
    yield taken
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
    service = Service.of(config, Forward(make_ranker("bi")), index=None)
    with running(service) as url, httpx.Client(base_url=url, timeout=SECONDS) as client:
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
        b"\xff\xfe{",
        b"[" * 20_000,
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


@pytest.mark.parametrize("value", [[1] * 11, ["a,b"] * 11, {str(n): n for n in range(11)}, ["\\", '"', "\\\\"] * 4])
def test_the_values_of_json_are_counted_without_reading_it(value):
    text = json.dumps(value).encode()
    assert has_more_values(text, 10)
    assert not has_more_values(text, 12)
    assert not has_more_values(json.dumps(["[,{" * 100]).encode(), 1)


def test_what_is_no_limit_is_an_error():
    for name in ("concurrent", "bytes", "seconds", "read_seconds", "ready_seconds"):
        for wrong in (0, -1, "many", float("nan")):
            with pytest.raises(ConfigError, match="timeout" if name == "seconds" else name):  # by its flag
                Limits(**{name: wrong})


KEY = "a-long-secret"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:1234", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("ranker.example", 200),
        ("evil.example", 400),
        ("localhost.evil.example", 400),
        ("localhost@evil.example", 400),
        ("", 400),
        ("localhost:port", 400),
    ],
)
def test_a_name_that_is_not_the_servers_is_refused(shared, host, status):
    assert shared.get("/info", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("http://127.0.0.1", 200),
        ("http://evil.example", 403),
        ("null", 403),
        ("http://localhost.evil.example", 403),
        ("file://", 403),
    ],
)
def test_a_page_of_another_site_is_refused(shared, origin, status):
    answer = shared.get("/info", headers={"Origin": origin})
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers


def test_a_key_opens_all_but_health(serve):
    client = serve("bi", records=None, api_key=KEY)
    right = [f"Bearer {KEY}", f"bearer {KEY}"]
    wrong = ["Bearer a-long-secre", f"Bearer {KEY}x", KEY, "Bearer", "Bearer é".encode("latin-1"), None]
    for shown in [*right, *wrong]:
        headers = {} if shown is None else {"Authorization": shown}
        for path, status in {"/info": 200, "/metrics": 200, "/docs": 200, "/v1/nothing": 404}.items():
            assert client.get(path, headers=headers).status_code == (status if shown in right else 401)
        answer = client.post("/v1/rerank", json={}, headers=headers)
        assert answer.status_code == (422 if shown in right else 401)
    assert client.get("/health").status_code == client.get("/ready").status_code == 200


def test_probes_may_use_any_address_but_no_other_sites_page(serve):
    client = serve("bi", records=None, allow_hosts=("ranker.example",))
    for path in ("/health", "/ready"):
        assert client.get(path, headers={"Host": "10.0.0.7:8000"}).status_code == 200
        other = {"Host": "10.0.0.7:8000", "Origin": "http://evil.example"}
        assert client.get(path, headers=other).status_code == 403
    assert client.get("/info", headers={"Host": "10.0.0.7:8000"}).status_code == 400


def test_with_a_key_and_another_address_any_name_will_do_unless_some_are_given(serve):
    client = serve("bi", records=None, host="0.0.0.0", api_key=KEY)
    headers = {"Authorization": f"Bearer {KEY}", "Host": "some.name"}
    assert client.get("/info", headers=headers).status_code == 200
    assert client.get("/info", headers=headers | {"Origin": "http://some.name"}).status_code == 200
    assert client.get("/info", headers=headers | {"Origin": "http://other.name"}).status_code == 403


def test_pages_of_other_sites_that_are_allowed_are_told_so(serve):
    shop = "https://shop.example:8443"
    client = serve("bi", records=None, api_key=KEY, allow_origins=(shop,))
    body = {"query": "hello", "documents": ["hi", "bye"]}
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
    preflight = client.options("/v1/rerank", headers={"Origin": shop, **asked})  # without a key, as browsers send it
    assert preflight.status_code == 200
    assert preflight.headers["Access-Control-Allow-Origin"] == shop
    for key, status in ((KEY, 200), ("wrong-key", 401)):
        answer = client.post("/v1/rerank", json=body, headers={"Origin": shop, "Authorization": f"Bearer {key}"})
        assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (status, shop)
    for other in ("https://evil.example", "https://shop.example", "null"):
        assert client.options("/v1/rerank", headers={"Origin": other, **asked}).status_code == 400
        headers = {"Origin": other, "Authorization": f"Bearer {KEY}"}
        assert "Access-Control-Allow-Origin" not in client.post("/v1/rerank", json=body, headers=headers).headers


def test_no_other_site_is_allowed_by_default(serve):
    client = serve("bi", records=None)
    asked = {"Access-Control-Request-Method": "POST", "Origin": "https://shop.example"}
    assert client.options("/v1/rerank", headers=asked).status_code == 403


@pytest.mark.parametrize("prefix", ["", "/ranker"])
def test_a_proxy_may_remove_its_path_or_leave_it(serve, prefix):
    client = serve("bi", records=None, api_key=KEY, root_path="/ranker")
    assert client.get(f"{prefix}/health").status_code == client.get(f"{prefix}/").status_code == 200
    assert client.get(f"{prefix}/page/page.js").status_code == 200
    assert client.get(f"{prefix}/info").status_code == 401
    headers = {"Authorization": f"Bearer {KEY}"}
    body = {"query": "hello", "documents": ["hi", "bye"]}
    assert client.post(f"{prefix}/v1/rerank", json=body, headers=headers).status_code == 200
    assert client.get(f"{prefix}/openapi.json", headers=headers).json()["servers"] == [{"url": "/ranker"}]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "ranker.example"])
def test_an_address_that_others_reach_needs_a_key(host):
    with pytest.raises(ConfigError, match="no key") as error:
        ServerConfig(model="m", host=host)
    assert error.value.argument == "host"
    assert KEY not in repr(ServerConfig(model="m", host=host, api_key=KEY))


@pytest.mark.parametrize(
    "wrong",
    [
        {"api_key": "short"},
        {"api_key": f"{KEY}\n"},
        {"api_key": "two words"},
        {"allow_hosts": ("example.com:8000",)},
        {"allow_hosts": ("http://example.com",)},
        {"allow_origins": ("shop.example",)},
        {"allow_origins": ("https://shop.example/",)},
        {"allow_origins": ("*",)},
        {"root_path": "ranker"},
        {"root_path": "/ranker/"},
        {"port": 65536},
        {"workers": 0},
        {"threads": 0},
        {"rerank": "x"},
        {"min_probability": 0.5},
        {"no_answer": "no ."},
    ],
)
def test_settings_that_cannot_be_are_errors(wrong):
    with pytest.raises(ConfigError) as error:
        ServerConfig(model="m", **wrong)
    assert error.value.argument in wrong
