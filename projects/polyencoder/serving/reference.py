"""Generates docs/reference/http.md from the server's OpenAPI description."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI

from polyencoder.serving.openapi import described

HEAD = """# HTTP

The routes of `polyencoder serve`, their fields, and an example of each. This page is made of the server's OpenAPI
description (`make docs`), which a running server has at `/openapi.json`, and as a page to try it at `/docs`.
[Serving](../serving.md) explains how to use them, errors, limits and access.

The examples are those of all-MiniLM-L6-v2 without training (`polyencoder serve --model
sentence-transformers/all-MiniLM-L6-v2 --index answers --feedback said.jsonl`, with an index of three candidates);
numbers are rounded. Answers omit fields without a value. A path in brackets is another name of the same route.
"""
MESSAGE = """## Message

One message of a chat, in `query` and `messages`.
"""


def page() -> str:
    """The whole page, in Markdown."""
    description = described(FastAPI(title="polyencoder")).openapi()
    schemas = description["components"]["schemas"]
    paths = description["paths"]
    lines = [HEAD]
    for path, methods in paths.items():
        if f"/v1{path}" in paths:
            continue  # another name
        other = f" (`{path.removeprefix('/v1')}`)" if path.removeprefix("/v1") in paths.keys() - {path} else ""
        for method, operation in methods.items():
            lines += [f"## {method.upper()} {path}\n", f"{_text(operation['description'])}{other}\n"]
            lines += _operation(operation, schemas)
    lines += [MESSAGE, *_fields("Field", schemas["Message"], schemas)]
    return "\n".join(lines)


def _operation(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body is not None:
        yield from _fields("Request", body["schema"], schemas)
        yield from _example(body)
    answer = operation["responses"]["200"]["content"].get("application/json", {})
    if "$ref" in answer.get("schema", {}):
        yield from _fields("Answer", answer["schema"], schemas)
    elif "example" in answer:
        yield "**Answer**\n"
    yield from _example(answer)


def _example(content: Mapping[str, Any]) -> Iterator[str]:
    if "example" in content:
        yield f"```json\n{_json(content['example'])}\n```\n"


def _json(value: Any, indent: str = "") -> str:
    """JSON whose objects and lists are on one line where that is at most 100 characters long."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= 100 or not isinstance(value, dict | list):
        return line
    deeper = f"{indent}  "
    if isinstance(value, list):
        parts, ends = [_json(one, deeper) for one in value], "[]"
    else:
        parts, ends = [f"{json.dumps(name)}: {_json(one, deeper)}" for name, one in value.items()], "{}"
    inner = ",\n".join(f"{deeper}{part}" for part in parts)
    return f"{ends[0]}\n{inner}\n{indent}{ends[1]}"


def _fields(title: str, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    columns = [title, "Type", *(["Default"] if title == "Request" else []), "Meaning"]
    yield f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}"
    for name, field, required in _rows(schema, schemas):
        cells = [f"`{name}`", _type(field, schemas), _text(field.get("description", ""))]
        if title == "Request":
            cells.insert(2, "**required**" if required else _default(field))
        yield f"| {' | '.join(cells)} |"
    yield ""


def _rows(schema: Mapping[str, Any], schemas: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any, bool]]:
    """(name, schema, required) of each field; of a list of objects, and of objects, also their fields."""
    schema = _resolved(schema, schemas)
    for name, field in schema.get("properties", {}).items():
        yield f"{at}{name}", field, name in schema.get("required", ()) and not at
        for one in _alternatives(field):
            inside = one.get("items", one)
            for part in _alternatives(inside):
                if "$ref" in part and _name(part) != "Message":
                    yield from _rows(part, schemas, f"{at}{name}{'[]' if 'items' in one else ''}.")


def _alternatives(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    return schemas[_name(schema)] if "$ref" in schema else schema


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _type(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    return " or ".join(dict.fromkeys(_one_type(one, schemas) for one in _alternatives(schema)))


def _one_type(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    words = {"integer": "whole number", "number": "number", "boolean": "boolean", "string": "text", "object": "object"}
    if choices := schema.get("enum", [schema["const"]] if "const" in schema else None):
        return ", ".join(f"`{choice}`" for choice in choices)
    if "items" in schema:
        inside = _type(schema["items"], schemas)
        return inside if inside.startswith("[") else f"list of {inside.replace(' or ', 's or ')}s"
    if schema.get("$ref", "").endswith("/Message"):
        return "[messages](#message)"
    kind = words[_resolved(schema, schemas)["type"]]
    limits = [f"from {schema['minimum']:g}"] if "minimum" in schema else []
    limits += [f"to {schema['maximum']:g}"] if "maximum" in schema else []
    return " ".join([kind, *limits])


def _default(schema: Mapping[str, Any]) -> str:
    value = schema.get("default")
    return "" if value is None or value == [] else f"`{json.dumps(value)}`"


def _text(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")
