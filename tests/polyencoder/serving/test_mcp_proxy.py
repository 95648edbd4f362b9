"""The proxy between MCP's own client and real servers over stdio, and the tools that it lists."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from types import SimpleNamespace

import anyio
import numpy as np
import pytest

from polyencoder import ConfigError, InputError, Selector
from polyencoder.cli.main import run
from tests.polyencoder.calibration.test_probability import calibrated

mcp = pytest.importorskip("mcp")

SERVER = """
from mcp.server import MCPServer

server = MCPServer({name!r})

@server.tool()
def {tool}(text: str) -> str:
    "{description}"
    return {name!r} + text

@server.tool()
def same(text: str) -> str:
    "i am a teacher ."
    return {name!r}

server.run()
"""
PROMPTS = """
import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

async def main():
    server = Server("prompts")
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""
PETS = SERVER.format(name="zoo", tool="pets", description="do you have any pets ?")
SKI = SERVER.format(name="sport", tool="ski", description="i like to ski in the mountains .")


def command(source: str) -> str:
    return shlex.join([sys.executable, "-c", source])


def proxied(model, *calls, servers=(PETS, SKI), options=()):
    """The answers of `polyencoder mcp-proxy` to calls, (name, arguments), each with the tools listed after it."""
    arguments = [word for source in servers for word in ("--server", command(source))]
    parameters = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "polyencoder", "mcp-proxy", "-m", str(model), *arguments, *options]
    )

    async def ask():
        found = []
        async with mcp.Client(parameters) as client:
            for call in calls:
                answer = await client.call_tool(*call)
                found.append((answer, [tool.name for tool in (await client.list_tools(cache_mode="bypass")).tools]))
        return found

    return anyio.run(ask)


@pytest.fixture(scope="module")
def model(make_ranker, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "bi"
    calibrated(make_ranker("bi")).save_pretrained(folder)
    return folder


@pytest.mark.long
def test_tools_are_found_listed_and_called(model):
    found = proxied(
        model,
        ("find_tools", {"query": ["hello", "do you have any pets ?"], "top_k": 4}),
        ("pets", {"text": "!"}),
        ("sport_same", {"text": ""}),
        ("nothing", {}),
        ("find_tools", {"query": ["a"], "top_n": 3}),
    )
    (tools, listed), (pets, _), (same, _), (unknown, _), (bad, _) = found
    assert listed == ["find_tools", *(tool["name"] for tool in tools.structured_content["tools"])]
    assert {*listed} == {"find_tools", "pets", "ski", "zoo_same", "sport_same"}
    assert (pets.content[0].text, same.content[0].text) == ("zoo!", "sport")
    assert unknown.is_error
    assert "find_tools" in unknown.content[0].text
    assert bad.is_error
    assert "top_n" in bad.content[0].text


def connected(make_ranker, *servers, **settings):
    from polyencoder.serving.mcp_proxy import ToolProxy

    async def list_tools(tools, *, cursor):  # in pages of one tool
        at = int(cursor or 0)
        return SimpleNamespace(tools=tools[at : at + 1], next_cursor=str(at + 1) if at + 1 < len(tools) else None)

    proxy = ToolProxy(Selector(calibrated(make_ranker("bi"))), **settings)
    clients = [SimpleNamespace(list_tools=partial(list_tools, tools)) for tools in servers]
    anyio.run(proxy.connect, [("a server", client) for client in clients])
    return proxy


def named(*names):
    return [mcp.Tool(name=name, description=f"do you have {name} ?", input_schema={}) for name in names]


def test_listed_tools_keep_their_order_and_the_oldest_make_room(make_ranker):
    tools = named("pets", "dogs", "cats", "skis", "cars")
    proxy, found = connected(make_ranker, tools, max_tools=3), []
    for name in ("dogs", "cats", "pets", "dogs", "skis"):
        before = proxy.listed
        found += [tool["name"] for tool in proxy.find({"query": f"{name}: do you have {name} ?", "top_k": 1})]
        assert proxy.listed[-1] == found[-1] or proxy.listed == before  # new ones last
        assert len(proxy.listed) <= 3
        assert [tool for tool in proxy.listed if tool in before] == [tool for tool in before if tool in proxy.listed]
    assert len(proxy.find({"query": "pets", "top_k": 5})) == 3
    assert len(proxy.listed) == 3


def test_the_tool_that_was_not_found_for_longest_leaves(make_ranker):
    proxy = connected(make_ranker, named("pets", "dogs", "cats"), max_tools=2)
    listed = []
    for name in ("pets", "dogs", "pets", "cats"):
        proxy._selector.ranker.score = lambda _, texts, name=name: np.array([[float(name in text) for text in texts]])
        proxy.find({"query": "hi", "top_k": 1})
        listed.append(proxy.listed)
    assert listed == [["pets"], ["pets", "dogs"], ["pets", "dogs"], ["pets", "cats"]]


def test_equal_tools_of_servers_with_one_name(make_ranker):
    proxy = connected(make_ranker, named("pets"), named("pets", "dogs"), named("pets"))
    found = proxy.find({"query": "pets", "top_k": 9})
    assert {tool["name"] for tool in found} == {"a_server_pets", "a_server_pets_2", "a_server_pets_3", "dogs"}


def test_improbable_tools_are_left_out(make_ranker):
    proxy = connected(make_ranker, named("pets", "dogs"), min_probability=1.0)
    assert proxy.find({"query": "pets"}) == []
    assert proxy.listed == []


@pytest.mark.parametrize("description", [None, "", " \n"])
def test_a_tool_without_a_description(make_ranker, description):
    proxy = connected(make_ranker, [mcp.Tool(name="pets", description=description, input_schema={})])
    assert proxy.find({"query": "pets"}) == [{"name": "pets", "description": "pets"}]


@pytest.mark.parametrize("arguments", [{}, {"query": []}, {"query": "a", "top_k": 0}, {"query": "a", "x": 1}])
def test_bad_queries(make_ranker, arguments):
    with pytest.raises(InputError):
        connected(make_ranker, named("pets")).find(arguments)


def test_servers_without_tools(make_ranker):
    with pytest.raises(InputError, match="no tools"):
        connected(make_ranker, [])


@pytest.mark.parametrize("server", ["no-such-program-here", "python 'x", command("raise SystemExit(3)")])
def test_a_server_that_does_not_start_is_named(model, server):
    with pytest.raises(ConfigError, match="does not start"):
        run(["mcp-proxy", "--model", str(model), "--server", server])


def test_a_server_that_lists_no_tools_is_named(model):
    with pytest.raises(ConfigError, match="'prompts' lists no tools"):
        run(["mcp-proxy", "--model", str(model), "--server", command(PROMPTS)])
