"""The OpenAPI description: its examples are what the server takes and returns."""

from __future__ import annotations

import pytest

from polyencoder.index.entries import Candidate
from polyencoder.serving.openapi import examples

REPLIES = [
    Candidate("refund", "Refunds take five working days.", {"topic": "money"}),
    Candidate("hours", "We open at nine.", {"topic": "shop"}),
    Candidate("password", "To reset your password, open Settings.", {"topic": "account"}),
]


def shape(value):
    """The names in JSON, with the type of each value."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def test_each_route_answers_its_example_as_the_description_shows(serve, tmp_path):
    client = serve("bi", records=REPLIES, feedback=str(tmp_path / "said.jsonl"))
    paths = client.get("/openapi.json").json()["paths"]
    known = examples()
    for path, methods in paths.items():
        for method, operation in methods.items():
            if path == "/metrics":
                continue
            answer = operation["responses"]["200"]["content"]["application/json"]["example"]
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
            assert {"answer": answer} | ({} if body is None else {"request": body}) in known.values()
            place = path.replace("{id}", "returns").replace("{name}", "tiny")
            found = client.request(method, place, **({} if body is None else {"json": body}))
            assert found.status_code == 200, (method, path, found.text)
            got = found.json()
            if "milliseconds" in got:
                assert got["milliseconds"].keys() == answer["milliseconds"].keys()
            assert shape(got) == shape(answer), (method, path)


def test_a_request_that_lacks_a_field_of_its_example_is_refused(serve):
    client = serve("bi", records=REPLIES)
    for name in ("documents", "query"):
        body = {key: value for key, value in examples()["post /v1/rerank"]["request"].items() if key != name}
        assert client.post("/v1/rerank", json=body).status_code == 422


@pytest.mark.parametrize("field", ["top_k", "diversity"])
def test_limits_are_in_the_description(shared, field):
    schema = shared.get("/openapi.json").json()["components"]["schemas"]["SearchRequest"]["properties"][field]
    assert [one["minimum"] for one in schema.get("anyOf", [schema]) if "minimum" in one]
