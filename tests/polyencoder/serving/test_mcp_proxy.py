"""The proxy between MCP's own client and real servers over stdio, and the tools that it lists."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from functools import partial

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from polyencoder import ConfigError, InputError, Selector
from polyencoder.cli.main import run
from tests.forked import Forked
from tests.parameters import mostly_long
from tests.polyencoder.calibration.test_probability import calibrated
from tests.polyencoder.serving.conftest import SECONDS

mcp = pytest.importorskip("mcp")

from polyencoder.serving.mcp_proxy import ToolProxy  # noqa: E402 - behind the extra's skip
from polyencoder.serving.mcp_remote import Remote  # noqa: E402

pytestmark = pytest.mark.slow

GROWING = """
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("young")

def dogs() -> str:
    "my dogs are here ."
    return "dogs"

@server.tool()
async def grow(context: Context) -> str:
    "i am a teacher ."
    server.add_tool(dogs)
    server.remove_tool("grow")
    await context.notify_tools_changed()
    return "grown"

server.run()
"""
OLD = """
import json, os, sys

name, *tools = sys.argv[1:]

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def call(tool, arguments, of, token):
    if tool == "grow":
        tools[0] = "dogs"
        send(method="notifications/tools/list_changed")
    elif tool == "count":
        step = {"progressToken": token, "progress": 1, "total": 2, "message": "half of it"}
        send(method="notifications/progress", params=step)
    elif tool == "leave":
        os._exit(1)
    text = str(os.getpid()) if tool == "count" else name + arguments.get("text", "")
    if tool != "hang":
        send(**of, result={"content": [{"type": "text", "text": text}]})

for line in sys.stdin:
    request = json.loads(line)
    method, of, params = request["method"], {"id": request.get("id")}, request.get("params") or {}
    if method == "initialize":
        able, info = {"tools": {"listChanged": True}}, {"name": name, "version": "1"}
        send(**of, result={"protocolVersion": "2025-06-18", "capabilities": able, "serverInfo": info})
    elif method == "tools/list" and tools:
        at = int(params.get("cursor") or 0)  # each on a page of its own
        tool = {"name": tools[at], "description": "i am " + tools[at], "inputSchema": {"type": "object"}}
        send(**of, result={"tools": [tool]} | ({"nextCursor": str(at + 1)} if at + 1 < len(tools) else {}))
    elif method == "tools/call":
        call(params["name"], params.get("arguments") or {}, of, params.get("_meta", {}).get("progressToken"))
    elif of["id"] is not None:
        send(**of, error={"code": -32601, "message": "no such method"})
"""
INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def command(source: str, *words: str) -> str:
    """The command of a new process: a forked one would have the proxy's signal handlers."""
    return shlex.join([sys.executable, "-I", "-c", source, *words])


SILENT = command("import time; time.sleep(600)")
PETS = command(OLD, "zoo", "pets", "same", "hang")


def parameters(model, *servers, options=()):
    flags = [word for server in servers for word in ("--server", server)]
    arguments = ["-m", "polyencoder", "mcp-proxy", "-m", str(model), *flags, *options]
    return mcp.StdioServerParameters(command=sys.executable, args=arguments)


@pytest.fixture(scope="module")
def model(make_ranker, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "bi"
    calibrated(make_ranker("bi")).save_pretrained(folder)
    Forked([sys.executable, "-c", ""]).wait()  # clients wait for seconds, imports on a busy machine may take more
    return folder


@pytest.mark.usefixtures("forked_commands")
def test_tools_are_found_listed_and_called_though_a_server_or_a_tool_does_not_answer(model, tmp_path):
    calls = [
        ("find_tools", {"query": ["hello", "do you have any pets ?"], "top_k": 9}),
        *[("pets", {"text": "!"}), ("sport_same", {}), ("nothing", {}), ("find_tools", {"query": ["a"], "top_n": 3})],
        *[("hang", {}), ("pets", {"text": "?"})],
    ]

    async def ask(errors):
        started = parameters(model, SILENT, PETS, command(OLD, "sport", "ski", "same"), options=("--timeout", "4"))
        async with mcp.Client(mcp.stdio_client(started, errlog=errors)) as client:
            answers = [await client.call_tool(*call) for call in calls]
            return answers, [tool.name for tool in (await client.list_tools(cache_mode="bypass")).tools]

    with (tmp_path / "errors").open("w") as errors:
        (tools, *answers), listed = anyio.run(ask, errors)
    pets, same, unknown, bad, hangs, again = (answer.content[0].text for answer in answers)
    assert listed == ["find_tools", *(tool["name"] for tool in tools.structured_content["tools"])]
    assert {*listed} == {"find_tools", "pets", "ski", "zoo_same", "sport_same", "hang"}
    assert (pets, same, again) == ("zoo!", "sport", "zoo?")
    assert [answer.is_error for answer in answers] == [False, False, True, True, True, False]
    assert "find_tools" in unknown
    assert "top_n" in bad
    assert "'zoo'" in hangs
    assert SILENT in (tmp_path / "errors").read_text()


@pytest.mark.usefixtures("forked_commands")
@mostly_long(
    ("server", "mode"), [("growing", "legacy"), ("old", "auto"), ("growing", "auto"), ("old", "legacy")], quick=2
)
def test_tools_that_come_and_go_are_followed(model, server, mode):
    """Some servers and clients send changes unasked, others on request; both kinds are followed."""

    async def ask():
        changed = anyio.Event()

        async def receive(message):
            if isinstance(message, mcp.types.ToolListChangedNotification):
                changed.set()

        source = {"growing": command(GROWING), "old": command(OLD, "old", "grow")}[server]
        client = mcp.Client(parameters(model, source), mode=mode, message_handler=receive)
        async with client, AsyncExitStack() as stack:
            if mode == "auto":
                await stack.enter_async_context(client.listen(tools_list_changed=True))
            await client.call_tool("find_tools", {"query": ["hello"], "top_k": 9})
            with anyio.fail_after(SECONDS):
                await changed.wait()
                changed = anyio.Event()
                before = await client.list_tools(cache_mode="bypass")
                await client.call_tool("grow", {})
                await changed.wait()
            after = await client.list_tools(cache_mode="bypass")
            answer = await client.call_tool("find_tools", {"query": ["my dogs are here ."], "top_k": 1})
            return [{tool.name for tool in listed.tools} for listed in (before, after)], answer

    (before, after), answer = anyio.run(ask)
    assert "grow" in before
    assert "grow" not in after
    assert [tool["name"] for tool in answer.structured_content["tools"]] == ["dogs"]


@pytest.mark.usefixtures("forked_commands")
def test_progress_is_passed_on_and_a_server_that_ends_is_left_out(model):
    async def ask():
        steps = []

        async def progress(*step):
            steps.append(step)

        async with mcp.Client(parameters(model, command(OLD, "counter", "count", "leave"), PETS)) as client:
            await client.call_tool("count", {}, progress_callback=progress)
            leaving = await client.call_tool("leave", {})
            with anyio.fail_after(SECONDS):
                while not (lost := await client.call_tool("count", {})).content[0].text.startswith("there is no tool"):
                    await anyio.sleep(0.05)
            pets = await client.call_tool("pets", {"text": "!"})
        return steps, leaving, lost, pets

    steps, leaving, lost, pets = anyio.run(ask)
    assert steps == [(1, 2, "half of it")]
    assert leaving.is_error
    assert "'counter'" in leaving.content[0].text
    assert lost.is_error
    assert pets.content[0].text == "zoo!"


@pytest.mark.usefixtures("forked_commands")
@mostly_long("number", [signal.SIGTERM, signal.SIGINT], quick=1)
def test_a_signal_ends_the_servers_and_the_proxy(model, number):
    """While the client holds its standard input open."""
    started = parameters(model, command(OLD, "counter", "count"))
    with subprocess.Popen([started.command, *started.args], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as proxy:
        try:
            lines = [
                {"method": "initialize", "id": 1, "params": INITIALIZE},
                {"method": "notifications/initialized"},
                {"method": "tools/call", "id": 2, "params": {"name": "count", "arguments": {}}},
            ]
            for line in lines:
                proxy.stdin.write(json.dumps({"jsonrpc": "2.0", **line}).encode() + b"\n")
                proxy.stdin.flush()
            answers = (json.loads(line) for line in proxy.stdout)
            answer = next(answer for answer in answers if answer.get("id") == 2)
            child = int(answer["result"]["content"][0]["text"])
            os.kill(child, 0)
            proxy.send_signal(number)
            assert proxy.wait(SECONDS) == -number
            with pytest.raises(ProcessLookupError):
                os.kill(child, 0)
        finally:
            proxy.kill()


def connected(make_ranker, *servers, **settings):
    proxy = ToolProxy(Selector(calibrated(make_ranker("bi"))), **settings)
    proxy.update([remote(tools) for tools in servers])
    return proxy


def remote(tools):
    server = Remote("a server")
    server.tools = tools
    return server


def named(*names):
    return [mcp.Tool(name=name, description=f"do you have {name} ?", input_schema={}) for name in names]


def test_listed_tools_keep_their_order_and_the_oldest_make_room(make_ranker):
    tools = named("pets", "dogs", "cats", "skis", "cars")
    proxy, names = connected(make_ranker, tools, max_tools=3), []
    for name in ("dogs", "cats", "pets", "dogs", "skis"):
        before = proxy.listed
        names += [tool["name"] for tool in proxy.find({"query": f"{name}: do you have {name} ?", "top_k": 1})]
        assert proxy.listed[-1] == names[-1] or proxy.listed == before  # new ones last
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
    tools = proxy.find({"query": "pets", "top_k": 9})
    assert {tool["name"] for tool in tools} == {"a_server_pets", "a_server_pets_2", "a_server_pets_3", "dogs"}


def test_improbable_tools_are_left_out(make_ranker):
    proxy = connected(make_ranker, named("pets", "dogs"), min_probability=1.0)
    assert proxy.find({"query": "pets"}) == []
    assert proxy.listed == []


@pytest.mark.parametrize("description", [None, "", " \n"])
def test_a_tool_without_a_description(make_ranker, description):
    proxy = connected(make_ranker, [mcp.Tool(name="pets", description=description, input_schema={})])
    assert proxy.find({"query": "pets"}) == [{"name": "pets", "description": "pets"}]


@pytest.mark.parametrize(
    "arguments", [{}, {"query": []}, {"query": [" "]}, {"query": "a", "top_k": 0}, {"query": "a", "x": 1}]
)
def test_bad_queries(make_ranker, arguments):
    with pytest.raises(InputError, match=r"^query|top_k|'x'"):
        connected(make_ranker, named("pets")).find(arguments)


def test_servers_without_tools(make_ranker):
    with pytest.raises(InputError, match="no tools"):
        connected(make_ranker, []).find({"query": "pets"})


def test_a_name_stays_when_another_server_gets_it_too(make_ranker):
    proxy = connected(make_ranker)
    first, second = remote(named("pets", "cats")), remote(named("dogs"))
    proxy.update([first, second])
    proxy.find({"query": "pets", "top_k": 9})
    assert {*proxy.listed} == {"pets", "cats", "dogs"}
    first.tools, second.tools = named("pets"), named("pets", "dogs")
    proxy.update([first, second])
    assert {*proxy.listed} == {"pets", "dogs"}
    assert {tool["name"] for tool in proxy.find({"query": "pets", "top_k": 9})} == {"pets", "a_server_pets", "dogs"}


def test_all_pages_of_tools_are_read():
    async def read():
        started = Remote(command(OLD, "old", "grow", "hang"))
        async with anyio.create_task_group() as group:
            group.start_soon(partial(started.run, timeout=30, changed=anyio.lowlevel.checkpoint))
            await started.ready.wait()
            group.cancel_scope.cancel()
        return started

    assert [tool.name for tool in anyio.run(read).tools] == ["grow", "hang"]


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (SILENT, "has not listed its tools within 0.5"),
        ("no-such-program-here", "does not start"),
        ("python 'x", "does not start"),
        (command("raise SystemExit(3)"), "does not start"),
        (command(OLD, "none"), "'none' lists no tools"),
    ],
    ids=["silent", "no program", "half a quote", "ends", "no tools"],
)
def test_a_server_that_cannot_be_used_is_named(model, server, says):
    timeout = "0.5" if server == SILENT else "60"
    with pytest.raises(ConfigError, match=says):
        run(["mcp-proxy", "--model", str(model), "--server", server, "--timeout", timeout])
