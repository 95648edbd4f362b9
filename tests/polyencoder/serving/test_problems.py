"""What clients are told of a database that is away: that it is, not where it is and who asks it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import httpx
import pytest

from polyencoder.index import open_index
from polyencoder.serving.batch_forward import BatchForward
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.service import Service
from tests.polyencoder.serving.conftest import REPLIES, SECONDS, running


def damage_database(folder: Path) -> None:
    (folder / "index.sqlite").write_bytes(b"damaged" * 1000)


def remove_database(folder: Path) -> None:
    (folder / "index.sqlite").unlink()


@pytest.mark.parametrize("damage", [damage_database, remove_database, None])
def test_an_index_that_is_damaged_or_of_another_model_is_said_without_its_folder(make_ranker, tmp_path, caplog, damage):
    where, ranker = tmp_path / "hidden", make_ranker("bi")
    ranker.index(REPLIES, where).close()
    config = ServerConfig(model="tiny", index=str(where), port=0)
    service = Service.of(config, BatchForward(ranker), index=open_index(where, ranker))
    with running(service) as url, httpx.Client(base_url=url, timeout=SECONDS) as client, caplog.at_level(logging.ERROR):
        assert client.get("/ready").status_code == 200
        if damage is None:
            other = make_ranker("bi", seed=1)
            other.source = tmp_path / "hidden model"
            shutil.rmtree(where)
            other.index(REPLIES, where).close()
        else:
            damage(where)
        answers = [client.get("/ready"), client.post("/v1/search", json={"query": "do you ski ?"})]
        answers.append(client.put("/v1/candidates", json={"candidates": [{"id": "x", "text": "x"}]}))
        answers.append(client.get("/info"))
    service.close()
    assert any(answer.status_code >= 500 for answer in answers)
    for answer in answers:
        assert "hidden" not in answer.text
        assert str(tmp_path) not in answer.text
        assert answer.status_code in (200, 503)
    assert "hidden" in caplog.text


@pytest.mark.parametrize("name", ["#hidden", ""])
def test_addresses_are_the_servers_own_affair(postgres, make_ranker, tmp_path, caplog, name):
    where = postgres.address.replace("tester@", "tester:secret@") + "?application_name=hidden" + name
    ranker = make_ranker("bi")
    config = ServerConfig(model="tiny", index=where, port=0)
    service = Service.of(config, BatchForward(ranker), index=ranker.index(REPLIES, where))
    with running(service) as url, httpx.Client(base_url=url, timeout=SECONDS) as client, caplog.at_level(logging.ERROR):
        assert client.get("/ready").status_code == 200
        service.index.close()
        service.index._database.parameters["port"] = "1"
        answers = [client.get("/ready"), client.post("/v1/search", json={"query": "do you ski ?"})]
        unknown = client.request("DELETE", "/v1/candidates/none%20(of)")
    service.close()
    assert [one.status_code for one in answers] == [503, 503]
    assert answers[0].json()["reason"] == answers[1].json()["message"]
    assert answers[0].json()["reason"].startswith("no connection to the index's server")
    for answer in [*answers, unknown]:
        assert not any(word in answer.text for word in ("tester", "127.0.0.1", "hidden", "secret", "postgres:"))
    assert f"#{name[1:] or 'polyencoder'}: no connection" in caplog.text  # the log has all but the password
    assert "secret" not in caplog.text


def test_of_several_indexes_clients_are_told_numbers(make_ranker, tmp_path):
    """The second does not answer: a server that may leave it out says so, another one says which."""
    ranker, gone = make_ranker("bi"), "postgres://tester:secret@127.0.0.1:1/none#hidden"
    ranker.index(REPLIES[:2], tmp_path / "first", words=True).close()
    ranker.index(REPLIES[2:], tmp_path / "third", words=True).close()
    places = (str(tmp_path / "first"), gone, str(tmp_path / "third"))
    config = ServerConfig(model="tiny", index=places, partial=True, port=0)
    index = open_index(places, ranker, partial=True)
    query = {"query": "do you ski ?", "top_k": 9}
    service = Service.of(config, BatchForward(ranker), index=index)
    with running(service) as url, httpx.Client(base_url=url, timeout=SECONDS) as client:
        answer = client.post("/v1/search", json=query).json()
        nothing = client.post("/v1/search", json={**query, "filter": {"lang": "de"}, "messages": None}).json()
        changed = client.put("/v1/candidates", json={"candidates": [{"text": "hello"}]})
        useless = client.post("/v1/search", json={**query, "effort": 4})
        index.partial = False
        refused = client.post("/v1/search", json=query)
    service.close()
    assert {(one["id"], one["part"]) for one in answer["results"]} == {
        *((one.id, 1) for one in REPLIES[:2]),
        *((one.id, 3) for one in REPLIES[2:]),
    }
    assert (answer["missing"], nothing["missing"]) == ([2], [2])
    assert (changed.status_code, useless.status_code, refused.status_code) == (422, 422, 503)
    assert str(tmp_path) not in useless.text
    assert "cannot be changed: change one of them" in changed.json()["message"]
    assert "127.0.0.1" not in refused.text
