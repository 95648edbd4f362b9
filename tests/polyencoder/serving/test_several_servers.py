"""Servers without state of their own: two processes over one Milvus behind a port, as on several machines."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.polyencoder.serving.conftest import REPLIES, SECONDS, started

NEW = {"id": "new", "text": "we ski every winter .", "metadata": {"lang": "en"}}


@pytest.fixture
def milvus(tmp_path):
    """The place of a collection of a Milvus Lite that listens on a port."""
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = "import sys; from milvus_lite.cmdline import main; sys.exit(main())"
    options = ["server", "--host", "127.0.0.1", "--port", str(port), "--data-dir", str(tmp_path / "milvus")]
    with subprocess.Popen([sys.executable, "-c", run, *options], stdout=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + SECONDS
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
            yield f"milvus:http://127.0.0.1:{port}#replies"
        finally:
            process.kill()


def answers(servers: list[httpx.Client], path: str, asked: dict) -> list[dict]:
    """What each server says to the same request."""
    found = [server.post(path, json=asked) for server in servers]
    assert [one.status_code for one in found] == [200] * len(servers), [one.text for one in found]
    return [one.json()["results"] for one in found]


def test_servers_over_one_milvus_answer_alike_and_see_each_others_changes(place, make_ranker, milvus):
    make_ranker("poly").index(REPLIES, milvus)
    with contextlib.ExitStack() as stack:
        with ThreadPoolExecutor(2) as pool:  # importing torch twice takes as long as once
            starting = [pool.submit(stack.enter_context, started("--index", milvus)) for _ in range(2)]
        servers = [stack.enter_context(httpx.Client(base_url=one.result()[1], timeout=SECONDS)) for one in starting]
        first, second = servers

        for path, asked in [
            ("/v1/search", {"query": "do you ski ?", "top_k": 4, "filter": {"lang": "en"}}),
            ("/v1/rerank", {"query": "do you ski ?", "documents": [one.text for one in REPLIES]}),
        ]:
            here, there = answers(servers, path, asked)
            assert here == there
            assert len(here) >= 4

        def ids() -> list[set[str]]:
            return [{hit["id"] for hit in hits} for hits in answers(servers, "/v1/search", {"query": "do you ski ?"})]

        before = {one.id for one in REPLIES}
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
