"""An MCP server in front of others, which lists only the tools that a conversation needs.

A server of MCP never sees the conversation. So the proxy lists the tool `find_tools`, which a language model calls with
its last messages, or with what it looks for; the tools that a ranker chooses are listed from then on. Tools keep their
order, so that the beginning of a prompt stays the same, until newer ones need their room.
"""

from __future__ import annotations

import json
import logging
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from itertools import count as numbers
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
from mcp import MCPError
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool

from polyencoder.errors import InputError, PolyencoderError, join_lines
from polyencoder.selector import Selector
from polyencoder.serving.mcp import build_failed_result, get_library_version
from polyencoder.serving.mcp_remote import Remote
from polyencoder.text.dialogue import check_context

_log = logging.getLogger(__name__)

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


class _ListedTool(NamedTuple):
    """A tool of another server: as it is listed here, the server, and the tool's name there."""

    tool: Tool
    remote: Remote
    name: str


class ToolProxy:
    """The tools of several MCP servers; only those in `listed` are shown.

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
        self._min_probability, self._max_risk = min_probability, max_risk
        self._names: dict[tuple[Remote, str], str] = {}
        self._tools: dict[str, _ListedTool] = {}
        self._latest: list[str] = []  # the listed tools, the last found at the end
        self.listed: list[str] = []

    def update(self, remotes: Sequence[Remote]) -> None:
        """Takes the tools that servers have now. A name that was listed once stays.

        The server's name precedes a name that two tools have; if two servers have one name, tools of the second have a
        number, too. Tools that no server has are no longer listed.
        """
        count = Counter(tool.name for remote in remotes for tool in remote.tools)
        tools: dict[str, _ListedTool] = {}
        for remote in remotes:
            prefix = re.sub(r"[^A-Za-z0-9_-]+", "_", remote.name)  # language models take no other characters
            for tool in remote.tools:
                if (key := (remote, tool.name)) not in self._names:
                    is_shared = count[tool.name] > 1 or tool.name == FIND_TOOLS
                    name = f"{prefix}_{tool.name}" if is_shared else tool.name
                    numbered = chain([name], (f"{name}_{number}" for number in numbers(2)))
                    used = set(self._names.values())
                    self._names[key] = next(new for new in numbered if new not in used)
                name = self._names[key]
                described = (tool.description or "").strip() or tool.title or tool.name  # a ranker requires one
                changes = {"name": name, "description": described}
                tools[name] = _ListedTool(tool.model_copy(update=changes), remote, tool.name)
        self._tools = tools
        self._latest, self.listed = ([name for name in old if name in tools] for old in (self._latest, self.listed))

    def list_tools(self) -> list[Tool]:
        """`find_tools`, and the tools that are listed."""
        return [_FINDER, *(self._tools[name].tool for name in self.listed)]

    async def call(
        self, name: str, arguments: dict[str, Any], *, progress: ProgressFnT | None = None
    ) -> CallToolResult:
        """Calls a tool of a server, which tells its progress; an error is a result, too."""
        tool = self._tools.get(name)
        if tool is None:
            return build_failed_result(f"there is no tool {name!r:.60}; {FIND_TOOLS} finds one")
        try:
            return await tool.remote.call(tool.name, arguments, progress=progress)
        except MCPError as error:
            return build_failed_result(f"the server {tool.remote.name!r}: {join_lines(error)}")

    def find(self, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        """Chooses tools and lists them from now on; returns their names and texts.

        Raises:
            InputError: the query is bad, or the servers have no tools.
        """
        if unknown := arguments.keys() - {"query", "top_k"}:
            raise InputError(f"unknown argument {sorted(unknown)[0]!r:.60}; {FIND_TOOLS} takes query and top_k")
        turns = check_context("query", arguments.get("query", ""))
        if not self._tools:
            raise InputError("the servers have no tools")
        options = [
            {"name": name, "description": tool.description, "inputSchema": tool.input_schema}
            for name, (tool, _, _) in self._tools.items()
        ]
        chosen = self._selector.select(
            turns,
            options,
            top_k=arguments.get("top_k", 3),
            min_probability=self._min_probability,
            max_risk=self._max_risk,
        ).chosen
        names = [choice.option["name"] for choice in chosen][: self._max]
        earlier = [name for name in self._latest if name not in names]
        self._latest = [*earlier, *reversed(names)][-self._max :]
        listed = [name for name in self.listed if name in self._latest]
        self.listed = [*listed, *(name for name in names if name not in listed)]
        return [{"name": name, "description": self._tools[name].tool.description} for name in names]


class _Server:
    """The MCP server that lists and calls a proxy's tools, and tells its client when the list has changed."""

    def __init__(self, proxy: ToolProxy) -> None:
        self._proxy = proxy
        self._lock = anyio.Lock()  # of searches and changes
        self._subscribers = InMemorySubscriptionBus()
        self._session: Any = None  # of the client, if it has asked for anything

    async def run(self) -> None:
        """Answers one client on standard input and output until it closes them."""
        server: Server[Any] = Server(
            "polyencoder-proxy",
            version=get_library_version(),
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=ListenHandler(self._subscribers),
        )
        options = server.create_initialization_options(NotificationOptions(tools_changed=True))
        async with stdio_server() as (read, write):
            await server.run(read, write, options)

    async def update(self, remotes: Sequence[Remote]) -> None:
        """Takes the tools that servers have now."""
        async with self._telling_changes():
            self._proxy.update(remotes)

    async def _list_tools(self, context: Any, _: Any) -> ListToolsResult:
        self._session = context.session
        return ListToolsResult(tools=self._proxy.list_tools(), ttl_ms=0)

    async def _call_tool(self, context: Any, params: CallToolRequestParams) -> CallToolResult:
        self._session = context.session
        arguments = params.arguments or {}
        if params.name != FIND_TOOLS:
            return await self._proxy.call(params.name, arguments, progress=context.session.report_progress)
        try:
            async with self._telling_changes():
                tools = await anyio.to_thread.run_sync(self._proxy.find, arguments)
        except PolyencoderError as error:
            return build_failed_result(str(error))
        text = TextContent(type="text", text=json.dumps(tools, ensure_ascii=False))
        return CallToolResult(content=[text], structured_content={"tools": tools})

    @asynccontextmanager
    async def _telling_changes(self) -> AsyncIterator[None]:
        async with self._lock:
            before = self._proxy.list_tools()
            yield
            has_changed = self._proxy.list_tools() != before
        if has_changed:
            await self._subscribers.publish(ToolsListChanged())
            if self._session is not None:  # clients of older versions do not subscribe
                await self._session.send_tool_list_changed()


def run_proxy(proxy: ToolProxy, commands: Sequence[str], *, timeout: float) -> None:
    """Starts the servers, and answers one client on standard input and output until it closes them.

    A server that does not list its tools within `timeout` seconds is left out with a warning, if others do; a call
    that it does not answer in this time is the call's error. SIGINT and SIGTERM end the servers, then this process.

    Raises:
        ConfigError: a server does not start, or cannot list its tools, or none does in time; it is named.
    """

    async def answer() -> PolyencoderError | None:
        server, error = _Server(proxy), None
        remotes = [Remote(command) for command in commands]

        async def notify_changed() -> None:
            await server.update(remotes)

        async def run_remotes() -> None:
            with running:
                async with anyio.create_task_group() as group:
                    for remote in remotes:
                        group.start_soon(partial(remote.run, timeout=timeout, changed=notify_changed))
            ended.set()

        async def end_at_signal() -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                number = await anext(signals)
                running.cancel()
                await ended.wait()
            signal.signal(number, signal.SIG_DFL)  # nothing else interrupts the thread that reads standard input
            signal.raise_signal(number)

        running, ended = anyio.CancelScope(), anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(end_at_signal)
            group.start_soon(run_remotes)
            for remote in remotes:
                await remote.ready.wait()
            late = [remote.error for remote in remotes if remote.is_late]
            wrong = [remote.error for remote in remotes if remote.error and not remote.is_late]
            error = next(iter(wrong or (late if len(late) == len(remotes) else [])), None)
            if error is None:
                for name in late:
                    _log.warning(f"{name}: it is left out")
                await server.update(remotes)
                await server.run()
            group.cancel_scope.cancel()
        return error  # raised in the task group it would be an exception group

    if error := anyio.run(answer):
        raise error
