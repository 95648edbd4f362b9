"""The tools of MCP, called by the protocol's own client: in the process, over HTTP and over stdio."""

from __future__ import annotations

import json
import re
import sys

import anyio
import pytest

from polyencoder import ConfigError, Selector
from polyencoder.cli.main import run
from polyencoder.serving.config import Limits, ServerConfig
from polyencoder.serving.run import _HTTP_SETTINGS
from polyencoder.serving.run import serve as run_server
from polyencoder.settings.fields import get_leaves
from tests.polyencoder.calibration.test_probability import calibrated
from tests.polyencoder.test_selector import CHAT, TOOLS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def installed():
    """Imported by these tests alone: it takes seconds, and every process collects this file."""
    pytest.importorskip("mcp")


def call_tools(server, *calls, **options):
    """The names of a server's tools, and its answers to calls of them, (name, arguments)."""
    import mcp

    async def ask():
        async with mcp.Client(server, **options) as client:
            tools = (await client.list_tools()).tools
            return tools, [await client.call_tool(*call) for call in calls]

    return anyio.run(ask)


def test_tools_answer_as_the_routes_do(serve, make_ranker):
    client = serve(calibrated(make_ranker("poly")), mcp="http")
    calls = {
        "rerank": {"query": "do you ski ?", "documents": ["i like to ski .", "hello"], "top_n": 1},
        "select": {"messages": CHAT, "options": TOOLS, "top_k": 2, "min_probability": 0.001},
        "search": {"query": "do you ski ?", "top_k": 2, "filter": {"lang": "en"}},
    }
    tools, answers = call_tools(f"{client.base_url}/mcp", *calls.items())
    assert [tool.name for tool in tools] == list(calls)
    for (name, body), answer in zip(calls.items(), answers, strict=True):
        assert not answer.is_error
        actual, expected = answer.structured_content, client.post(f"/v1/{name}", json=body).json()
        assert json.loads(answer.content[0].text) == actual
        for result in (actual, expected):
            result.pop("id")
            result.pop("milliseconds", None)
        assert actual == expected
    expected = Selector(client.service.engine.ranker).select(CHAT, TOOLS, top_k=2)
    chosen = answers[1].structured_content["chosen"]
    assert [(row["option"], row["index"]) for row in chosen] == [(row.option, row.index) for row in expected.chosen]
    # the tools that a client lists can be options themselves
    assert Selector(client.service.engine.ranker).select("rank texts", tools).chosen[0].name in calls


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("select", {"query": "a", "options": ["a", {"name": "x"}]}, r"option 1 \('x'\) has no description"),
        ("select", {"query": "a"}, "options: Field required"),
        ("select", {"query": "a", "options": ["a"], "top_n": 1}, "did you mean top_k"),
        ("select", {"query": "a", "options": ["a"], "min_probability": 0.5}, "polyencoder calibrate"),
        ("rerank", {"query": "a", "documents": ["a"] * 4}, "at most 3"),
        ("search", {"query": "a"}, "there is no tool 'search'; the tools are rerank, select"),
    ],
)
def test_what_is_wrong_is_the_result_of_the_tool(make_service, name, arguments, says):
    from polyencoder.serving.mcp import create_mcp_server

    server = create_mcp_server(make_service("bi", records=None, limits=Limits(documents=3)))
    (tools, (answer,)) = call_tools(server, (name, arguments))
    assert [tool.name for tool in tools] == ["rerank", "select"]
    assert answer.is_error
    assert re.search(says, answer.content[0].text)


def test_the_endpoint_is_as_guarded_as_the_routes(serve):
    client = serve("bi", records=None, mcp="http", api_key="secret-key", limits=Limits(bytes=500))
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert client.post("/mcp", json=call).status_code == 401
    key = {"Authorization": "Bearer secret-key", "Accept": "application/json, text/event-stream"}
    assert client.post("/mcp", json=call, headers={**key, "Origin": "http://evil.example"}).status_code == 403
    assert client.post("/mcp", json={**call, "x": "a" * 500}, headers=key).status_code == 413
    assert client.get("/mcp", headers=key).status_code == 405
    assert serve("bi", records=None).post("/mcp", json=call).status_code == 404


def test_over_stdio(workspace):
    import mcp

    command = ["-m", "polyencoder", "serve", "-m", "model", "--index", "replies", "--mcp", "stdio"]
    started = mcp.StdioServerParameters(command=sys.executable, args=command, cwd=str(workspace))
    tools, (answer,) = call_tools(started, ("select", {"query": "do you ski ?", "options": TOOLS}))
    assert [tool.name for tool in tools] == ["rerank", "select", "search"]
    assert len(answer.structured_content["chosen"]) == len(TOOLS)


def test_settings_that_stdio_would_not_read_are_errors():
    assert set(get_leaves(ServerConfig)) >= _HTTP_SETTINGS
    with pytest.raises(ConfigError, match="max_concurrent is of the HTTP server"):
        run(["serve", "-m", "model", "--mcp", "stdio", "--max-concurrent", "3"])
    with pytest.raises(ConfigError, match="port is of the HTTP server, which mcp stdio does not start") as error:
        run_server(ServerConfig(model="model", mcp="stdio", port=8001))
    assert error.value.argument == "port"


def test_the_version_without_torch(make_service, monkeypatch):
    from polyencoder.serving import mcp as ours  # of an extra

    monkeypatch.setattr(ours, "get_version", {"polyencoder-runtime": "1.2.3"}.get)
    assert ours.create_mcp_server(make_service("bi")).version == "1.2.3"
