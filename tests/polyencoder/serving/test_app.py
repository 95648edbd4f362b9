"""The OpenAPI description of the routes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings


@pytest.mark.slow
def test_a_body_that_is_wrong_is_described_as_it_is_answered(shared):
    description = shared.get("/openapi.json").json()
    errors = description["paths"]["/v1/search"]["post"]["responses"]
    assert errors.keys() == {"200", "4XX", "5XX"}
    reference = errors["4XX"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    answer = shared.post("/v1/search", json={}).json()
    assert answer.keys() == description["components"]["schemas"][reference]["properties"].keys()
    assert description["paths"]["/metrics"]["get"]["responses"]["200"]["content"].keys() == {"text/plain"}


def test_a_removed_route_names_another(shared):
    answer = shared.post("/v1/score", json={"documents": ["a cat"]})
    assert answer.status_code == 404
    assert "/v1/rerank" in answer.json()["message"]


@pytest.mark.long
def test_no_request_that_a_machine_invents_is_the_servers_fault(serve):
    """Requests that the description allows, and requests that it does not."""
    schemathesis = pytest.importorskip("schemathesis", reason="no schemathesis: pip install schemathesis")
    from schemathesis import checks, specs

    schema = schemathesis.openapi.from_url(f"{serve().base_url}/openapi.json")  # its requests change the index
    tried = []
    for operation in schema.get_all_operations():
        tried.append(operation.ok().path)

        @settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.ok().as_strategy())
        def call(case):
            case.call_and_validate(
                headers={"Host": "localhost"},
                checks=[
                    checks.not_a_server_error,
                    specs.openapi.checks.status_code_conformance,
                    specs.openapi.checks.content_type_conformance,
                    specs.openapi.checks.response_schema_conformance,
                ],
            )

        call()
    assert len(tried) > 12


def test_each_field_of_a_request_is_explained(shared):
    description = shared.get("/openapi.json").json()
    schemas = description["components"]["schemas"]
    requests = [
        operation["requestBody"]["content"]["application/json"]["schema"]
        for methods in description["paths"].values()
        for operation in methods.values()
        if "requestBody" in operation
    ]
    bodies = [
        part["$ref"].rpartition("/")[2]
        for schema in requests  # of some, either of two
        for part in schema.get("oneOf", schema.get("anyOf", [schema]))
        if part != {"type": "null"}
    ]
    assert len(bodies) > 7
    for name in bodies:
        assert [key for key, field in schemas[name]["properties"].items() if not field.get("description")] == [], name
