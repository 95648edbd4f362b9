"""A server that `polyencoder mcp-proxy` starts, and the tools that it lists now."""

from __future__ import annotations

import logging
import math
import shlex
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import CONNECTION_CLOSED, CallToolResult, Tool, ToolListChangedNotification

from polyencoder.errors import ConfigError, join_lines

_log = logging.getLogger(__name__)


class Remote:
    """An MCP server behind the proxy: its command, and its name, client and tools once it is `ready`."""

    def __init__(self, command: str) -> None:
        self.command = self.name = command
        self.client: Client
        self.tools: list[Tool] = []
        self.ready = anyio.Event()
        """Set once the tools are read, or cannot be."""
        self.error: ConfigError | None = None
        """Why they cannot be read."""
        self.is_late = False
        """Whether they cannot because the server did not answer in time."""
        self._news = anyio.Event()  # the tools may have changed

    async def run(self, *, timeout: float, changed: Callable[[], Awaitable[None]]) -> None:
        """Starts the server, and reads its tools again whenever it says that they have changed, until cancelled.

        A server that ends has no tools any more, from the next call on.

        Args:
            timeout: seconds to wait for the tools, and later for any answer.
            changed: called after they have changed.
        """
        with anyio.move_on_after(timeout) as limit:
            try:
                await self._follow(limit, timeout=timeout, changed=changed)
            except Exception as error:  # of the quotes, of the program, or of the protocol
                self._fail(f"does not start: {join_lines(error)}")
        if limit.cancelled_caught:
            self.is_late = True
            self._fail(f"has not listed its tools within {timeout:g} seconds")
        self.tools = []
        if self.ready.is_set():
            _log.warning(f"{self.error}: it is left out")
            await changed()
        self.ready.set()

    async def call(self, tool: str, arguments: dict[str, Any], *, progress: ProgressFnT | None) -> CallToolResult:
        """Calls a tool. Raises MCPError: the call is wrong, the server is gone, or does not answer in time."""
        try:
            return await self.client.call_tool(tool, arguments, progress_callback=progress)
        except MCPError as error:
            if error.error.code == CONNECTION_CLOSED:
                self._news.set()
            raise

    async def _follow(
        self, limit: anyio.CancelScope, *, timeout: float, changed: Callable[[], Awaitable[None]]
    ) -> None:
        program, *arguments = shlex.split(self.command) or [""]
        parameters = StdioServerParameters(command=program, args=arguments)

        async def receive(message: Any) -> None:
            if isinstance(message, ToolListChangedNotification):
                self._news.set()

        async with AsyncExitStack() as stack:
            client = Client(parameters, read_timeout_seconds=timeout, message_handler=receive, cache=None)
            self.client = await stack.enter_async_context(client)
            self.name = program if client.server_info is None else client.server_info.name
            with suppress(ListenNotSupportedError, MCPError, SubscriptionLost, TimeoutError):  # older ones just notify
                await stack.enter_async_context(client.listen(tools_list_changed=True))
            while True:
                try:
                    self.tools = await self._list_all_tools()
                except MCPError as error:  # such as a server that has none
                    self._fail(f"lists no tools: {join_lines(error)}")
                    return
                limit.deadline = math.inf
                if self.ready.is_set():
                    await changed()
                self.ready.set()
                await self._news.wait()
                self._news = anyio.Event()

    async def _list_all_tools(self) -> list[Tool]:
        tools, cursor = [], None
        while True:
            page = await self.client.list_tools(cursor=cursor)
            tools += page.tools
            if (cursor := page.next_cursor) is None:
                return tools

    def _fail(self, problem: str) -> None:
        self.error = ConfigError(f"the server {self.name!r} {problem}", argument="server")
