"""Who is answered: Host and Origin, keys, and addresses that need one."""

from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError
from polyencoder.serving.config import ServerConfig

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
