"""docs/reference/http.md, which is made of the OpenAPI description."""

from __future__ import annotations

import re

import pytest
from fastapi import FastAPI

from polyencoder.serving.openapi import described
from polyencoder.serving.reference import page


@pytest.fixture(scope="module")
def text() -> str:
    return page()


def test_each_route_and_each_field_of_a_request_is_explained(text):
    description = described(FastAPI()).openapi()
    sections = set(re.findall(r"^## ([A-Z]+ /.*)$", text, re.MULTILINE))
    for path, methods in description["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in sections or f"(`{path}`)" in text, path
    requests = re.findall(r"^\| Request \|.*?\n\n", text, re.MULTILINE | re.DOTALL)
    assert len(requests) > 7
    rows = [row.split(" | ") for table in requests for row in table.splitlines()[2:] if row]
    assert [row for row in rows if len(row) != 4 or not row[-1].strip("| ")] == []


def test_a_row_has_type_limits_and_default(text):
    assert "| `top_k` | whole number from 1 | `10` |" in text
    assert "| `documents[].text` | text |  |" in text
    assert "| `query` | text or [messages](#message) |  |" in text
    assert "| `results[].metadata` | object |" in text
