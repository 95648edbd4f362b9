"""`/health`, `/ready`, `/info`, `/metrics` and `/docs`."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from polyencoder.serving.config import Limits
from tests.polyencoder.serving.conftest import SECONDS, HeldCall, running

pytestmark = pytest.mark.slow


@pytest.fixture
def blocking():
    call = HeldCall()
    yield call
    call.release.set()


def test_what_is_served_is_said_without_paths(shared):
    info = shared.get("/info").json()
    assert (info["model"], info["architecture"], info["candidates"]) == ("tiny", "bi", 5)
    assert info["limits"]["documents"] == Limits().documents
    assert "/" not in info["model"]
    assert shared.get("/docs").status_code == 200
    assert [shared.head(path).status_code for path in ("/health", "/ready")] == [200, 200]
    assert "/v1/rerank" in shared.get("/openapi.json").json()["paths"]


def test_requests_and_passes_are_counted(serve):
    client = serve("bi", records=None)
    before = client.get("/metrics").text
    client.post("/v1/rerank", json={"query": "hello", "documents": ["a", "b", "c"]})
    client.post("/v1/rerank", json={"query": "hello", "documents": []})
    after = client.get("/metrics").text

    def value(text, name):
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))

    def grown(name):
        return value(after, name) - value(before, name)

    requests = 'polyencoder_requests_total{route="/v1/rerank",status="%d"}'
    assert [grown(requests % status) for status in (200, 422, 500)] == [1, 1, 0]
    assert grown('polyencoder_batch_size_sum{kind="candidate"}') == 3
    assert grown('polyencoder_batch_size_sum{kind="context"}') == 1
    assert grown("polyencoder_tokenize_seconds_count") == 1
    assert grown("polyencoder_finished_together_sum") == 1
    assert value(after, "polyencoder_queued_tokens") == 0


def test_a_bug_is_counted_as_500(serve, monkeypatch):
    client = serve("bi", records=None)
    monkeypatch.setattr(client.service.engine._model, "submit", lambda job: 1 / 0)
    close = {"Connection": "close"}
    answer = client.post("/v1/rerank", json={"query": "hello", "documents": ["a"]}, headers=close)
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    counted = 'polyencoder_requests_total{route="/v1/rerank",status="500"} 1.0'
    assert counted in client.get("/metrics").text


def test_a_server_is_ready_while_its_queue_is_short_and_its_index_there(serve):
    client = serve("bi", limits=Limits(queued_tokens=1))
    assert client.get("/ready").json() == {"status": "ready"}
    engine = client.service.engine
    entered, leave = threading.Event(), threading.Event()
    compute = engine._model._compute

    def slowly(*args):
        entered.set()
        assert leave.wait(60)
        return compute(*args)

    engine._model._compute = slowly
    body = {"query": "hello", "documents": ["a", "b", "c"]}
    thread = threading.Thread(target=client.post, args=["/v1/rerank"], kwargs={"json": body})
    thread.start()
    assert entered.wait(60)
    assert client.get("/ready").status_code == 503
    assert client.get("/health").status_code == 200
    leave.set()
    thread.join()
    assert client.get("/ready").status_code == 200


def test_an_index_that_does_not_answer_is_asked_once(serve, blocking):
    client = serve("bi", limits=Limits(ready_seconds=0.3))
    client.service.index.check_searchable = blocking
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(client.get, ["/ready"] * 24))
    assert {answer.status_code for answer in answers} == {503}
    assert {answer.json()["reason"] for answer in answers} == {"the index has not answered within 0.3 seconds"}
    assert blocking.count == 1
    assert client.post("/v1/search", json={"query": "do you ski ?"}).status_code == 200
    blocking.release.set()
    until = time.monotonic() + SECONDS
    while client.get("/ready").status_code != 200:
        assert time.monotonic() < until
    assert blocking.count > 1


def test_a_server_ends_though_its_index_does_not_answer(make_service, blocking):
    service = make_service("bi", limits=Limits(ready_seconds=0.1))
    service.index.check_searchable = blocking
    with running(service) as url:
        assert httpx.get(f"{url}/ready", timeout=SECONDS).status_code == 503
    assert not blocking.release.is_set()
