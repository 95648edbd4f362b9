"""The Model Context Protocol: routes of the server as tools, at `/mcp` or on standard input and output."""

from __future__ import annotations

import inspect
import json
import signal
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool
from pydantic import BaseModel, ValidationError

from polyencoder.errors import PolyencoderError
from polyencoder.packages import get_version
from polyencoder.serving import rerank, search, select
from polyencoder.serving.problems import describe_invalid_body, format_for_clients
from polyencoder.serving.service import Service


class _Operation(NamedTuple):
    """A route as a tool: its request, its response and its function."""

    request: type[BaseModel]
    response: type[BaseModel]
    run: Callable[[Any, Service], Awaitable[BaseModel]]

    def build_tool(self, name: str) -> Tool:
        schema = self.request.model_json_schema()
        fields = schema["properties"].items()
        schema["properties"] = {key: field for key, field in fields if "Ignored" not in field.get("description", "")}
        output = self.response.model_json_schema()
        return Tool(name=name, description=inspect.getdoc(self.run), input_schema=schema, output_schema=output)


def create_mcp_server(service: Service) -> Server[Any]:
    """The tools `rerank`, `select` and, with an index, `search`, with the routes' arguments, limits and answers.

    What is wrong with a request is the tool's result, marked as an error, so that a language model can mend it.
    """
    operations = {
        "rerank": _Operation(rerank.RerankRequest, rerank.RerankResponse, rerank.rerank),
        "select": _Operation(select.SelectRequest, select.SelectResponse, select.select),
    }
    if service.index is not None:
        operations["search"] = _Operation(search.SearchRequest, search.SearchResponse, search.search)

    async def list_tools(*_: Any) -> ListToolsResult:
        return ListToolsResult(tools=[operation.build_tool(name) for name, operation in operations.items()])

    async def call_tool(_: Any, params: CallToolRequestParams) -> CallToolResult:
        operation, arguments = operations.get(params.name), params.arguments or {}
        if operation is None:
            return build_failed_result(f"there is no tool {params.name!r:.60}; the tools are {', '.join(operations)}")
        try:
            request = operation.request.model_validate(arguments)
        except ValidationError as error:
            return build_failed_result(describe_invalid_body(error.errors(), arguments)[0])
        try:
            answer = await operation.run(request, service)
        except PolyencoderError as error:
            return build_failed_result(format_for_clients(error))
        content = answer.model_dump(mode="json", exclude_none=True)
        text = TextContent(type="text", text=json.dumps(content, ensure_ascii=False))
        return CallToolResult(content=[text], structured_content=content)

    return Server("polyencoder", version=get_library_version(), on_list_tools=list_tools, on_call_tool=call_tool)


def get_library_version() -> str:
    """Returns the version that servers of MCP tell their clients."""
    return get_version("parlai-polyencoder") or get_version("polyencoder-runtime") or ""


def build_failed_result(message: str) -> CallToolResult:
    """A result that tells a language model what is wrong with its call."""
    return CallToolResult(content=[TextContent(type="text", text=message)], is_error=True)


def create_mcp_manager(service: Service) -> StreamableHTTPSessionManager:
    """MCP's streamable HTTP, without sessions, so that any worker answers any request."""
    limit = service.config.limits.bytes
    return StreamableHTTPSessionManager(
        create_mcp_server(service), json_response=True, stateless=True, max_request_body_size=limit
    )


def serve_stdio(service: Service) -> None:
    """Answers one client on standard input and output, until it closes them. SIGINT ends the process as SIGTERM does:
    nothing interrupts the thread that reads standard input."""

    async def answer() -> None:
        server = create_mcp_server(service)
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    signal.signal(signal.SIGINT, lambda *_: signal.raise_signal(signal.SIGTERM))
    anyio.run(answer)
