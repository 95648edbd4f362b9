"""Which requests are let in: by the name of the server, the page that sends them, and the key."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

KEY = "a-long-secret"


@pytest.mark.parametrize(
    ("name", "refused", "values"),
    [
        ("Host", None, ["localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:80", "ranker.example"]),
        ("Host", 400, ["evil.example", "localhost.evil.example", "localhost@evil.example", "", "localhost:port"]),
        ("Origin", None, ["http://localhost:3000", "http://127.0.0.1"]),
        ("Origin", 403, ["http://evil.example", "null", "http://localhost.evil.example", "file://"]),
    ],
)
def test_a_name_that_is_not_the_servers_and_a_page_of_another_site_are_refused(shared, name, refused, values):
    for value in values:
        answer = shared.get("/info", headers={name: value})
        assert answer.status_code == (refused or 200), value
        assert "access-control-allow-origin" not in answer.headers


def test_a_key_opens_all_but_health_and_pages_that_ask_for_it(serve):
    client = serve("bi", records=None, api_key=KEY)
    right = [f"Bearer {KEY}", f"bearer {KEY}"]
    wrong = ["Bearer a-long-secre", f"Bearer {KEY}x", KEY, "Bearer", "Bearer é".encode("latin-1"), None]
    for authorization in [*right, *wrong]:
        headers = {} if authorization is None else {"Authorization": authorization}
        for path, status in {"/info": 200, "/metrics": 200, "/v1/nothing": 404}.items():
            assert client.get(path, headers=headers).status_code == (status if authorization in right else 401)
        answer = client.post("/v1/rerank", json={}, headers=headers)
        assert answer.status_code == (422 if authorization in right else 401)
    for path in ("/health", "/ready", "/", "/docs"):
        assert client.get(path).status_code == 200
    schema = client.get("/openapi.json").json()  # by which the page /docs has a field for the key
    assert schema["paths"]["/v1/rerank"]["post"]["security"] == [{"HTTPBearer": []}]
    assert schema["components"]["securitySchemes"]["HTTPBearer"] == {"type": "http", "scheme": "bearer"}


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
    cors = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, x-stainless-os"}
    preflight = client.options("/v1/rerank", headers={"Origin": shop, **cors})  # without a key, as browsers send it
    assert preflight.status_code == 200
    assert preflight.headers["Access-Control-Allow-Origin"] == shop
    for key, status in ((KEY, 200), ("wrong-key", 401)):
        answer = client.post("/v1/rerank", json=body, headers={"Origin": shop, "Authorization": f"Bearer {key}"})
        assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (status, shop)
    assert client.get("/v1/nothing", headers={"Origin": shop}).headers["Access-Control-Allow-Origin"] == shop
    for other in ("https://evil.example", "https://shop.example", "null"):
        assert client.options("/v1/rerank", headers={"Origin": other, **cors}).status_code == 400
        headers = {"Origin": other, "Authorization": f"Bearer {KEY}"}
        assert "Access-Control-Allow-Origin" not in client.post("/v1/rerank", json=body, headers=headers).headers


def test_allowed_pages_can_read_the_answer_to_a_bug_and_when_to_come_again(serve, monkeypatch):
    shop = {"Origin": "https://shop.example"}
    client = serve("bi", records=None, allow_origins=(shop["Origin"],))
    monkeypatch.setattr(client.service.engine, "check_texts", lambda *_, **__: 1 / 0)
    broken = client.post("/v1/embeddings", json={"input": "a"}, headers=shop)
    assert (broken.status_code, broken.headers["Access-Control-Allow-Origin"]) == (500, shop["Origin"])
    assert broken.headers["Access-Control-Expose-Headers"] == "Retry-After"


@pytest.mark.parametrize("prefix", ["", "/ranker"])
def test_a_proxy_may_remove_its_path_or_leave_it(serve, prefix):
    client = serve("bi", records=None, api_key=KEY, root_path="/ranker")
    assert client.get(f"{prefix}/health").status_code == client.get(f"{prefix}/").status_code == 200
    assert client.get(f"{prefix}/page/page.js").status_code == 200
    assert client.get(f"{prefix}/info").status_code == 401
    assert client.get("/ranker").headers["Location"].endswith("/ranker/")  # the page's links are relative
    headers = {"Authorization": f"Bearer {KEY}"}
    body = {"query": "hello", "documents": ["hi", "bye"]}
    assert client.post(f"{prefix}/v1/rerank", json=body, headers=headers).status_code == 200
    assert client.get(f"{prefix}/openapi.json", headers=headers).json()["servers"] == [{"url": "/ranker"}]
