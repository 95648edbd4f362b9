"""What clients are told of a database that is away: that it is, not where it is and who asks it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import httpx
import pytest

from polyencoder.errors import CheckpointError, InputError
from polyencoder.index import open_index
from polyencoder.serving.config import ServerConfig
from polyencoder.serving.forward import Forward
from polyencoder.serving.problems import format_for_clients
from polyencoder.serving.service import Service
from tests.polyencoder.serving.conftest import REPLIES, SECONDS, running

pytestmark = pytest.mark.slow


def damage_database(folder: Path) -> None:
    (folder / "index.sqlite").write_bytes(b"damaged" * 1000)


def remove_database(folder: Path) -> None:
    (folder / "index.sqlite").unlink()


@pytest.mark.parametrize("damage", [damage_database, remove_database, None])
def test_an_index_that_is_damaged_or_of_another_model_is_said_without_its_folder(make_ranker, tmp_path, caplog, damage):
    where, ranker = tmp_path / "hidden", make_ranker("bi")
    ranker.index(REPLIES, where).close()
    config = ServerConfig(model="tiny", index=str(where), port=0)
    service = Service.from_config(config, Forward(ranker), index=open_index(where, ranker))
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
    service = Service.from_config(config, Forward(ranker), index=ranker.index(REPLIES, where))
    with running(service) as url, httpx.Client(base_url=url, timeout=SECONDS) as client, caplog.at_level(logging.ERROR):
        assert client.get("/ready").status_code == 200
        service.index.close()
        service.index._database.parameters["port"] = "1"
        answers = [client.get("/ready"), client.post("/v1/search", json={"query": "do you ski ?"})]
        unknown = client.request("DELETE", "/v1/candidates/none%20(of)")
    service.close()
    assert [answer.status_code for answer in answers] == [503, 503]
    assert answers[0].json()["reason"] == answers[1].json()["message"]
    assert answers[0].json()["reason"].startswith("no connection to the index's server")
    for answer in [*answers, unknown]:
        assert not any(word in answer.text for word in ("tester", "127.0.0.1", "hidden", "secret", "postgres:"))
    assert f"#{name[1:] or 'polyencoder'}: no connection" in caplog.text  # the log has all but the password
    assert "secret" not in caplog.text


def test_clients_are_told_what_is_for_them():
    assert format_for_clients(InputError("top_k is 0")) == "top_k is 0"
    assert format_for_clients(InputError("damaged", where="folder")) == "damaged"
    assert "folder" not in format_for_clients(CheckpointError("folder: damaged"))
