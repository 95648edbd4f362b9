"""`/health`, `/ready`, `/info`, `/metrics` and `/docs`."""

from __future__ import annotations

import threading

from polyencoder.serving.config import Limits


def test_what_is_served_is_said_without_paths(shared):
    info = shared.get("/info").json()
    assert (info["model"], info["architecture"], info["candidates"]) == ("tiny", "bi", 5)
    assert info["limits"]["documents"] == Limits().documents
    assert "/" not in info["model"]
    assert shared.get("/docs").status_code == 200
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

    assert grown('polyencoder_batch_size_sum{kind="candidate"}') == 3
    assert grown('polyencoder_batch_size_sum{kind="context"}') == 1
    assert grown("polyencoder_tokenize_seconds_count") == 1
    assert grown("polyencoder_finished_together_sum") == 1
    assert value(after, "polyencoder_queued_tokens") == 0


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
    asked = {"query": "hello", "documents": ["a", "b", "c"]}
    thread = threading.Thread(target=client.post, args=["/v1/rerank"], kwargs={"json": asked})
    thread.start()
    assert entered.wait(60)
    assert client.get("/ready").status_code == 503
    assert client.get("/health").status_code == 200
    leave.set()
    thread.join()
    assert client.get("/ready").status_code == 200
