"""Servers without state of their own: two processes over one Milvus behind a port, as on several machines."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from polyencoder.serving.config import Limits, ServerConfig
from polyencoder.serving.forward import Forward
from polyencoder.serving.service import Service
from tests.polyencoder.serving.conftest import REPLIES, SECONDS, running, started

pytestmark = pytest.mark.slow

NEW = {"id": "new", "text": "we ski every winter .", "metadata": {"lang": "en"}}


@contextlib.contextmanager
def milvus_lite(folder, port):
    """A process of a Milvus Lite that listens on the port and keeps its files in the folder."""
    run = "import sys; from milvus_lite.cmdline import main; sys.exit(main())"
    options = ["server", "--host", "127.0.0.1", "--port", str(port), "--data-dir", str(folder)]
    with subprocess.Popen([sys.executable, "-c", run, *options], stdout=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + SECONDS
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
            yield process
        finally:
            process.kill()


@pytest.fixture
def port():
    """A free port for Milvus Lite."""
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def milvus(tmp_path, port):
    """The address of a collection of a Milvus Lite that listens on a port."""
    with milvus_lite(tmp_path / "milvus", port):
        yield f"milvus:http://127.0.0.1:{port}#replies"


def answers(servers: list[httpx.Client], path: str, body: dict) -> list[dict]:
    """What each server says to the same request."""
    responses = [server.post(path, json=body) for server in servers]
    assert all(response.status_code == 200 for response in responses), [response.text for response in responses]
    return [response.json()["results"] for response in responses]


def test_servers_over_one_milvus_answer_alike_and_see_each_others_changes(workspace, make_ranker, milvus):
    make_ranker("poly").index(REPLIES, milvus)
    with contextlib.ExitStack() as stack:
        with ThreadPoolExecutor(2) as pool:  # importing torch twice takes as long as once
            starting = [pool.submit(stack.enter_context, started("--index", milvus)) for _ in range(2)]
        servers = [stack.enter_context(httpx.Client(base_url=job.result()[1], timeout=SECONDS)) for job in starting]
        first, second = servers

        for path, body in [
            ("/v1/search", {"query": "do you ski ?", "top_k": 4, "filter": {"lang": "en"}}),
            ("/v1/rerank", {"query": "do you ski ?", "documents": [reply.text for reply in REPLIES]}),
        ]:
            first_results, second_results = answers(servers, path, body)
            assert first_results == second_results
            assert len(first_results) >= 4

        def ids() -> list[set[str]]:
            return [{hit["id"] for hit in hits} for hits in answers(servers, "/v1/search", {"query": "do you ski ?"})]

        before = {reply.id for reply in REPLIES}
        assert ids() == [before] * 2
        assert first.put("/v1/candidates", json={"candidates": [NEW]}).status_code == 200
        assert ids() == [before | {"new"}] * 2
        assert second.put("/v1/candidates", json={"candidates": [{**NEW, "text": "no ."}]}).status_code == 200
        for hits in answers(servers, "/v1/search", {"query": "do you ski ?"}):
            assert [hit["text"] for hit in hits if hit["id"] == "new"] == ["no ."]
        assert second.request("DELETE", "/v1/candidates", json={"ids": ["new", "ski"]}).status_code == 200
        assert ids() == [before - {"ski"}] * 2

        starting[0].result()[0].kill()
        assert [hit["id"] for hit in answers([second], "/v1/search", {"query": "do you ski ?", "top_k": 1})[0]]


def test_a_milvus_that_hangs_or_was_away_keeps_the_server_from_nothing_else(make_ranker, tmp_path, port):
    """A restarted Milvus counts its candidates, but refuses to search them until it has loaded them."""
    ranker, where = make_ranker("poly"), f"milvus:http://127.0.0.1:{port}#replies"
    limits = Limits(ready_seconds=0.5, seconds=5)
    config = ServerConfig(model="tiny", index=where, port=0, limits=limits)
    query = {"query": "do you ski ?", "filter": {"about": "pets"}}
    documents = {"query": "do you ski ?", "documents": ["yes .", "no ."]}

    def check_ready_again() -> None:
        until = time.monotonic() + SECONDS
        while client.get("/ready").status_code != 200:  # gRPC waits before it connects again
            assert time.monotonic() < until
            time.sleep(0.1)
        assert answers([client], "/v1/search", query) == before

    with contextlib.ExitStack() as stack:
        with milvus_lite(tmp_path / "milvus", port) as milvus:
            service = Service.from_config(config, Forward(ranker), index=ranker.index(REPLIES, where))
            stack.callback(service.close)
            url = stack.enter_context(running(service))
            client = stack.enter_context(httpx.Client(base_url=url, timeout=SECONDS))
            assert client.get("/ready").status_code == 200
            before = answers([client], "/v1/search", query)
            milvus.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, milvus.pid, os.WSTOPPED | os.WNOWAIT)  # it may answer until then
            with ThreadPoolExecutor(4) as pool:
                searching = [pool.submit(client.post, "/v1/search", json=query) for _ in range(2)]
                changing = pool.submit(client.put, "/v1/candidates", json={"candidates": [NEW]})
                for _ in range(3):
                    assert client.get("/ready").json()["reason"] == "the index has not answered within 0.5 seconds"
                    assert client.get("/info").json()["message"] == "the index has not answered within 0.5 seconds"
                    assert client.post("/v1/rerank", json=documents).status_code == 200
                assert {future.result().status_code for future in [*searching, changing]} == {504}
            milvus.send_signal(signal.SIGCONT)
            check_ready_again()
        assert client.get("/ready").status_code == 503
        assert client.post("/v1/search", json=query).status_code == 503
        assert client.post("/v1/rerank", json=documents).status_code == 200
        with milvus_lite(tmp_path / "milvus", port):
            check_ready_again()
