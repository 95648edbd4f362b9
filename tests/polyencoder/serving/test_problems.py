"""What clients are told of a database that is away: that it is, not where it is and who asks it."""

from __future__ import annotations

import logging

import httpx
import pytest

from polyencoder.serving.config import ServerConfig
from polyencoder.serving.service import Service
from tests.polyencoder.serving.conftest import REPLIES, SECONDS, running


@pytest.mark.parametrize("name", ["#hidden", ""])
def test_addresses_are_the_servers_own_affair(postgres, make_ranker, tmp_path, caplog, name):
    where = postgres.address.replace("tester@", "tester:secret@") + "?application_name=hidden" + name
    ranker = make_ranker("bi")
    config = ServerConfig(model="tiny", index=where, port=0, sessions=str(tmp_path / "sessions"))
    service = Service.of(config, ranker, index=ranker.index(REPLIES, where))
    with running(service) as url, httpx.Client(base_url=url, timeout=SECONDS) as client, caplog.at_level(logging.ERROR):
        assert client.get("/ready").status_code == 200
        service.index.close()
        service.index._server.parameters["port"] = "1"
        answers = [client.get("/ready"), client.post("/v1/search", json={"query": "do you ski ?"})]
        unknown = client.request("DELETE", "/v1/candidates/none%20(of)")
    service.close()
    assert [one.status_code for one in answers] == [503, 503]
    assert answers[0].json()["reason"] == answers[1].json()["message"]
    assert answers[0].json()["reason"].startswith("no connection; is the server running")
    for answer in [*answers, unknown]:
        assert not any(word in answer.text for word in ("tester", "127.0.0.1", "hidden", "secret", "postgres:"))
    assert f"#{name[1:] or 'polyencoder'}: no connection" in caplog.text  # the log has all but the password
    assert "secret" not in caplog.text
