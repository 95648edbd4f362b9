"""The OpenAPI description of the routes."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("field", ["top_k", "diversity"])
def test_limits_are_in_the_description(shared, field):
    schema = shared.get("/openapi.json").json()["components"]["schemas"]["SearchRequest"]["properties"][field]
    assert [one["minimum"] for one in schema.get("anyOf", [schema]) if "minimum" in one]


def test_each_field_of_a_request_is_explained(shared):
    description = shared.get("/openapi.json").json()
    schemas = description["components"]["schemas"]
    bodies = [
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for methods in description["paths"].values()
        for operation in methods.values()
        if "requestBody" in operation
    ]
    assert len(bodies) > 7
    for name in bodies:
        assert [key for key, field in schemas[name]["properties"].items() if not field.get("description")] == [], name
