"""`polyencoder mcp-proxy`: one MCP server in front of several, which lists only the tools that are needed."""

from __future__ import annotations

from dataclasses import field

from polyencoder.calibration import AnswerOptions
from polyencoder.cli.shared.loading import load
from polyencoder.packages import require
from polyencoder.selector import Selector
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import RankerSettings
from polyencoder.validation import Count, Positive


@settings()
class McpProxySettings(Settings):
    """The servers, and the ranker that chooses among their tools."""

    model: RankerSettings
    server: tuple[str, ...]
    """The command of an MCP server, which is started: "mcp-server-git --repository ."; repeatable."""
    max_tools: Count = 8
    """The most tools to list beside find_tools."""
    timeout: Positive = 60.0
    """Seconds that a server may take to list its tools, or to answer a call."""
    answers: AnswerOptions = field(default_factory=AnswerOptions)


def mcp_proxy(*, settings: McpProxySettings) -> None:
    """Answer an MCP client on standard input and output for several MCP servers, and list only the tools it needs.

    The client's language model calls find_tools with its last messages; the tools that are chosen are listed then.
    """
    require("mcp", extra="mcp")
    from polyencoder.serving.mcp_proxy import ToolProxy, run_proxy

    ranker = load(settings.model)
    settings.answers.threshold(ranker.calibration, of=ranker)  # raises for one without a calibration
    run_proxy(
        ToolProxy(Selector(ranker), max_tools=settings.max_tools, **vars(settings.answers)),
        settings.server,
        timeout=settings.timeout,
    )
