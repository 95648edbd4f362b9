"""An MCP server in front of others, which lists only the tools that a conversation needs.

A server of MCP never sees the conversation. So the proxy lists the tool `find_tools`, which a language model calls with
its last messages, or with what it looks for; the tools that a ranker chooses are listed from then on. Tools keep their
order, so that the beginning of a prompt stays the same, until newer ones need their room.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import chain
from itertools import count as numbers
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
from mcp import Client, MCPError, StdioServerParameters
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool

from polyencoder.errors import ConfigError, InputError, PolyencoderError, one_line
from polyencoder.selector import Selector
from polyencoder.serving.mcp import failed

FIND_TOOLS = "find_tools"
_FINDER = Tool(
    name=FIND_TOOLS,
    description="Find the tools that a conversation needs among those that are not listed. They can be called then.",
    input_schema={
        "type": "object",
        "properties": {
            "query": {
                "type": "array",
                "items": {"type": "string"},
                "description": "The last messages of the conversation, or a description of what is needed.",
            },
            "top_k": {"type": "integer", "minimum": 1, "default": 3, "description": "At most k tools."},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
)


class _Remote(NamedTuple):
    """A tool of another server: as it is listed here, the server, and the tool's name there."""

    tool: Tool
    client: Client
    name: str


class ToolProxy:
    """The tools of several MCP servers, of which `listed` are shown.

    Args:
        max_tools: the most tools to list beside `find_tools`.
        min_probability: leave out less probable tools, see `Selector.select`; `max_risk` likewise.
    """

    def __init__(
        self,
        selector: Selector,
        *,
        max_tools: int = 8,
        min_probability: float | None = None,
        max_risk: float | None = None,
    ) -> None:
        self._selector, self._max = selector, max_tools
        self._least, self._risk = min_probability, max_risk
        self._tools: dict[str, _Remote] = {}
        self._latest: list[str] = []  # the listed ones, those that were found last at the end
        self.listed: list[str] = []

    async def connect(self, clients: Sequence[tuple[str, Client]]) -> None:
        """Reads the tools of servers, by the servers' names, which precede the names that two tools have.

        Of two servers with one name, the second one's tools have a number, too.

        Raises:
            ConfigError: a server does not list its tools.
            InputError: there are no tools.
        """
        remotes = [(server, client, tool) for server, client in clients for tool in await _all_tools(server, client)]
        count = Counter(tool.name for _, _, tool in remotes)
        for server, client, tool in remotes:
            prefix = re.sub(r"[^A-Za-z0-9_-]+", "_", server)  # language models take no others
            name = f"{prefix}_{tool.name}" if count[tool.name] > 1 or tool.name == FIND_TOOLS else tool.name
            numbered = chain([name], (f"{name}_{number}" for number in numbers(2)))
            name = next(new for new in numbered if new not in self._tools)
            described = (tool.description or "").strip() or tool.title or tool.name  # MCP requires none, a ranker does
            self._tools[name] = _Remote(
                tool.model_copy(update={"name": name, "description": described}), client, tool.name
            )
        if not self._tools:
            raise InputError("the servers have no tools")

    def server(self) -> Server[Any]:
        """The MCP server that lists and calls the tools."""

        one_search = anyio.Lock()  # calls may come at once

        async def list_tools(*_: Any) -> ListToolsResult:
            return ListToolsResult(tools=[_FINDER, *(self._tools[name].tool for name in self.listed)], ttl_ms=0)

        async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
            arguments = params.arguments or {}
            if params.name == FIND_TOOLS:
                try:
                    async with one_search:
                        before = self.listed
                        found = await anyio.to_thread.run_sync(self.find, arguments)
                        has_changed = self.listed != before
                except PolyencoderError as error:
                    return failed(str(error))
                if has_changed:
                    await context.session.send_tool_list_changed()
                text = TextContent(type="text", text=json.dumps(found, ensure_ascii=False))
                return CallToolResult(content=[text], structured_content={"tools": found})
            remote = self._tools.get(params.name)
            if remote is None:
                return failed(f"there is no tool {params.name!r:.60}; {FIND_TOOLS} finds one")
            try:
                return await remote.client.call_tool(remote.name, arguments)
            except MCPError as error:
                return failed(one_line(error))

        return Server("polyencoder-proxy", on_list_tools=list_tools, on_call_tool=call_tool)

    def find(self, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        """Chooses tools and lists them from now on; returns their names and texts. InputError for a bad query."""
        if unknown := arguments.keys() - {"query", "top_k"}:
            raise InputError(f"unknown argument {sorted(unknown)[0]!r:.60}; {FIND_TOOLS} takes query and top_k")
        options = [
            {"name": name, "description": tool.description, "inputSchema": tool.input_schema}
            for name, (tool, _, _) in self._tools.items()
        ]
        chosen = self._selector.select(
            arguments.get("query", ""),
            options,
            top_k=arguments.get("top_k", 3),
            min_probability=self._least,
            max_risk=self._risk,
        ).chosen
        names = [choice.option["name"] for choice in chosen][: self._max]
        earlier = [name for name in self._latest if name not in names]
        self._latest = [*earlier, *reversed(names)][-self._max :]
        stay = [name for name in self.listed if name in self._latest]
        self.listed = [*stay, *(name for name in names if name not in stay)]
        return [{"name": name, "description": self._tools[name].tool.description} for name in names]


async def _all_tools(server: str, client: Client) -> list[Tool]:
    tools, cursor = [], None
    while True:
        try:
            page = await client.list_tools(cursor=cursor)
        except MCPError as error:  # such as a server that has none
            raise ConfigError(f"the server {server!r} lists no tools: {one_line(error)}", argument="server") from None
        tools += page.tools
        if (cursor := page.next_cursor) is None:
            return tools


def run_proxy(proxy: ToolProxy, commands: Sequence[str]) -> None:
    """Starts the servers, and answers one client on standard input and output until it closes them.

    Raises:
        ConfigError: a server does not start, or does not list its tools; it is named.
        InputError: the servers have no tools.
    """

    async def answer() -> PolyencoderError | None:
        async with AsyncExitStack() as stack:
            try:
                await proxy.connect([await _started(command, stack) for command in commands])
            except PolyencoderError as error:
                return error  # raised in here it would come out in groups
            server = proxy.server()
            options = server.create_initialization_options(NotificationOptions(tools_changed=True))
            async with stdio_server() as (read, write):
                await server.run(read, write, options)
        return None

    if error := anyio.run(answer):
        raise error


async def _started(command: str, stack: AsyncExitStack) -> tuple[str, Client]:
    try:
        program, *arguments = shlex.split(command) or [""]
        client = await stack.enter_async_context(Client(StdioServerParameters(command=program, args=arguments)))
    except Exception as error:  # of the quotes, of the program, or of the protocol
        raise ConfigError(f"the server {command!r} does not start: {one_line(error)}", argument="server") from None
    return (program if client.server_info is None else client.server_info.name), client
