"""`PUT` and `DELETE /v1/candidates`: whole, on disk, seen by everyone, and searches see one state or the other."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import filelock
import httpx
import pytest

from polyencoder.index.entries import Candidate
from polyencoder.index.folder.index import FolderIndex
from polyencoder.serving.config import Limits, ServerConfig
from polyencoder.serving.forward import Forward
from polyencoder.serving.service import Service
from tests.polyencoder.serving.conftest import REPLIES, SECONDS, check_refused, running, started
from tests.processes import full_disk

pytestmark = pytest.mark.slow

NEW = {"id": "new", "text": "do you have a horse ?", "metadata": {"lang": "en"}}


def nested(levels: int) -> list:
    return [] if levels == 1 else [nested(levels - 1)]


def read_candidates(client, **options) -> dict[str, tuple]:
    answer = client.post("/v1/search", json={"query": "hello", "top_k": 1000, **options})
    assert answer.status_code == 200, answer.text
    return {hit["id"]: (hit["text"], hit.get("metadata")) for hit in answer.json()["results"]}


def put(client, *candidates) -> int:
    answer = client.put("/v1/candidates", json={"candidates": list(candidates)})
    assert answer.status_code == 200, answer.text
    return answer.json()["candidates"]


def delete(client, *ids) -> httpx.Response:
    body = json.dumps({"ids": list(ids)})
    return client.request("DELETE", "/v1/candidates", content=body, headers={"Content-Type": "application/json"})


def test_what_is_put_is_found_replaced_and_removed(serve):
    client = serve("poly")
    before = read_candidates(client)
    assert put(client, NEW, {"text": "without an id"}) == len(before) + 2
    after = read_candidates(client)
    assert after["new"] == (NEW["text"], NEW["metadata"])
    assert {**before, **after} == after
    assert put(client, NEW) == len(after)  # again: nothing changes
    assert put(client, NEW | {"text": "no horse .", "metadata": None}, {"id": "ski", "text": "no skis ."}) == len(after)
    assert read_candidates(client)["new"] == ("no horse .", None)
    assert read_candidates(client)["ski"] == ("no skis .", None)
    assert delete(client, "new", "ski").json() == {"candidates": len(after) - 2}
    assert client.delete("/v1/candidates/tag").json() == {"candidates": len(after) - 3}
    assert put(client, {"id": 7, "text": "seven"}) == len(after) - 2
    assert read_candidates(client, top_k=999)["7"] == ("seven", None)
    assert delete(client, 7).json() == {"candidates": len(after) - 3}
    assert read_candidates(client).keys() == after.keys() - {"new", "ski", "tag"}
    ranker, index = client.service.engine.ranker, client.service.index
    hits = ranker.search("hello", FolderIndex.open(index.folder, ranker), top_k=1000)
    assert [hit.id for hit in hits] == list(read_candidates(client))


def test_what_passes_a_filter_is_removed(serve):
    client = serve("bi")
    before = read_candidates(client)
    for wrong in ('{"lang": 3}', '{"lagn": "de"}', '{"lagn": null}', "lang=de", "{}", '{"lang": {"$like": "d"}}', "["):
        check_refused(client.delete("/v1/candidates", params={"filter": wrong}), "filter")
    check_refused(client.delete("/v1/candidates"), "ids")
    assert read_candidates(client) == before
    answer = client.delete("/v1/candidates", params={"filter": '{"about": {"$exists": true}, "lang": {"$ne": "de"}}'})
    assert answer.json() == {"candidates": len(before) - 1}
    assert read_candidates(client).keys() == before.keys() - {"pets"}


@pytest.mark.parametrize(
    ("candidates", "says"),
    [
        ([NEW, {"id": "x", "text": " "}], "candidates.1"),
        ([NEW, NEW], "duplicate id 'new'"),
        ([NEW, {"id": "x", "txt": "a"}], "'txt' is not a field of this request; did you mean text?"),
        ([NEW, {"id": "x", "txt": "a"}], '"param":"candidates.1.txt"'),
        ([NEW, {"id": "", "text": "a"}], "candidates.1.id"),
        ([NEW, {"id": 3.5, "text": "a"}], "candidates.1.id"),
        ([], "candidates is empty"),
        ([NEW, {"id": "\ud800", "text": "a"}], "candidates.1.id: character 1"),
        ([NEW, {"id": "x", "text": "a", "metadata": {"a": {"\ud800": 1}}}], "candidates.1.metadata.a: character 1"),
        ([NEW, {"id": "x", "text": "a", "metadata": {"a": nested(120)}}], "candidates.1.metadata: is nested more than"),
        ([NEW, {"id": "x", "text": "a", "metadata": {"a": nested(300)}}], "candidates.1.metadata: is nested more than"),
    ],
)
def test_what_cannot_be_put_changes_nothing(shared, candidates, says):
    before = read_candidates(shared)
    body = json.dumps({"candidates": candidates})  # with escapes for what no encoding has
    answer = shared.put("/v1/candidates", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert says in answer.text
    assert read_candidates(shared) == before


def test_what_is_not_there_is_removed_already(serve):
    client = serve("bi", records=[*REPLIES, Candidate("a/b", "with a slash")])
    for _ in range(2):
        assert delete(client, "tag", "tag", "nothing").json() == {"candidates": len(REPLIES)}
        assert client.delete("/v1/candidates/nothing").json() == {"candidates": len(REPLIES)}
    assert client.delete("/v1/candidates/").status_code == 422
    assert client.delete("/v1/candidates/a/b").json() == {"candidates": len(REPLIES) - 1}
    assert read_candidates(client).keys() == {candidate.id for candidate in REPLIES} - {"tag"}


@pytest.mark.parametrize("ids", [["tag", "\ud800"], []])
def test_what_cannot_be_removed_changes_nothing(shared, ids):
    before = read_candidates(shared)
    assert delete(shared, *ids).status_code == 422
    assert read_candidates(shared) == before


def test_without_an_index_there_is_nothing_to_change(serve):
    client = serve("bi", records=None)
    assert client.put("/v1/candidates", json={"candidates": [NEW]}).status_code == 422


def test_an_index_without_candidates_finds_nothing_and_can_be_filled(serve):
    client = serve("bi", no_answer="nothing .")
    assert delete(client, *(candidate.id for candidate in REPLIES)).json() == {"candidates": 0}
    assert read_candidates(client) == {}
    dialogue = [{"role": "user", "content": "hello"}]
    assert client.post("/v1/chat", json={"messages": dialogue}).json()["reply"] == "nothing ."
    assert put(client, NEW) == 1
    assert read_candidates(client).keys() == {"new"}


def test_changes_that_wait_become_one_and_one_that_fails_fails_by_itself(serve):
    client = serve("bi")
    index = client.service.index
    before = index.meta.version
    writer = client.service.writer
    busy = threading.Event()
    writer._thread.submit(busy.wait, SECONDS)
    with ThreadPoolExecutor(6) as pool:
        good = [pool.submit(put, client, NEW | {"id": f"n{n}", "text": f"text {n}"}) for n in range(4)]

        def records():
            yield Candidate("ski", "no skis .")
            raise UnicodeError("of any kind")

        failing = pool.submit(lambda: asyncio.run(writer.change(lambda index: index.put(records()))))
        while len(writer._waiting) < 5:
            busy.wait(0.02)
        busy.set()
        assert {future.result() for future in good} == {len(REPLIES) + 4}
        with pytest.raises(UnicodeError, match="of any kind"):
            failing.result()
    assert read_candidates(client)["ski"][0] != "no skis ."
    assert index.meta.version == before + 1
    assert {f"n{n}" for n in range(4)} <= read_candidates(client).keys()


def test_a_change_that_is_answered_504_may_be_made_and_is_sent_again(serve):
    client = serve("bi", limits=Limits(seconds=0.3))
    busy = threading.Event()
    client.service.writer._thread.submit(busy.wait, SECONDS)
    answer = client.put("/v1/candidates", json={"candidates": [NEW]})
    assert answer.status_code == 504
    assert "the change may still be made: send it again" in answer.json()["message"]
    busy.set()
    client.service.writer._thread.submit(lambda: None).result(SECONDS)
    assert put(client, NEW) == len(REPLIES) + 1


def test_searches_see_the_state_before_or_after_and_every_worker_the_same(make_ranker, tmp_path):
    """Two services over one folder, as two workers are: each change gives all candidates another number."""
    ranker = make_ranker("bi")
    ranker.index(["nothing"], tmp_path / "index")
    config = ServerConfig(model="tiny", index="index", port=0)
    indexes = [FolderIndex.open(tmp_path / "index", ranker) for _ in range(2)]
    services = [Service.from_config(config, Forward(ranker), index=index) for index in indexes]
    ids = [f"c{n}" for n in range(6)]

    def numbered(number: int) -> list[dict]:
        return [{"id": id_, "text": f"{id_} {number % 2}", "metadata": {"number": number}} for id_ in ids]

    def look(client) -> int:
        numbers = {row[1]["number"] for id_, row in read_candidates(client).items() if id_ in ids}
        assert len(numbers) == 1
        return numbers.pop()

    with running(services[0]) as first, running(services[1]) as second:
        clients = [httpx.Client(base_url=url, timeout=SECONDS) for url in (first, second)]
        put(clients[0], *numbered(0))
        done = threading.Event()

        def watch(client) -> list[int]:
            seen = []
            while not done.is_set():
                seen.append(look(client))
            return seen

        with ThreadPoolExecutor(4) as pool:
            watchers = [pool.submit(watch, client) for client in clients * 2]
            for number in range(1, 5):
                put(clients[number % 2], *numbered(number))
                assert {look(client) for client in clients} == {number}
            done.set()
            for watcher in watchers:
                seen = watcher.result()
                assert seen == sorted(seen)
        for client in clients:
            client.close()


def test_what_was_answered_outlasts_a_kill(workspace, make_ranker):
    with started("--index", "replies") as (process, url):
        client = httpx.Client(base_url=url, timeout=SECONDS)
        put(client, NEW)
        delete(client, "ski")
        process.send_signal(signal.SIGKILL)
        process.wait(SECONDS)
    index = FolderIndex.open(workspace / "replies", make_ranker("poly"))
    hits = make_ranker("poly").search("hello", index, top_k=1000)
    assert {hit.id for hit in hits} == {candidate.id for candidate in REPLIES} - {"ski"} | {"new"}


def test_an_index_that_another_process_keeps_is_answered_503_and_searched_as_ever(serve, monkeypatch):
    monkeypatch.setattr("polyencoder.index.folder.files._BUSY_SECONDS", 0.1)
    client = serve("bi")
    with filelock.FileLock(client.service.index.folder / ".lock"):
        answer = client.put("/v1/candidates", json={"candidates": [NEW]})
        assert answer.status_code == 503
        assert "another process" in answer.json()["message"]
        assert str(client.service.index.folder) not in answer.text
        assert len(read_candidates(client)) == len(REPLIES)
    assert put(client, NEW) == len(REPLIES) + 1


def test_a_full_disk_is_said_as_such_and_nothing_is_changed(serve):
    client = serve("bi")
    before = read_candidates(client)
    with full_disk():
        answer = client.put("/v1/candidates", json={"candidates": [NEW]})
    assert answer.status_code == 507, answer.text
    assert "the index cannot be written" in answer.json()["message"]
    assert read_candidates(client) == before
    assert put(client, NEW) == len(before) + 1
