"""The tools of agents: requests, Python functions and those of MCP servers."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.directed_io import FunctionTool
from offhook.web.config.agents import Agent, AgentTool
from offhook.web.config.config import Config
from offhook.web.config.tools import Tool
from offhook.web.tools.function_io import Fill, FunctionDefinition, function_of
from offhook.web.tools.http_tool_io import HttpTools
from offhook.web.tools.python_tool_io import PythonTool, load

if TYPE_CHECKING:  # with an MCP server: its package is an extra
    from offhook.web.tools.mcp_servers_io import McpServers


class AgentTools:
    """The tools of all calls of a process."""

    def __init__(self) -> None:
        self._http = HttpTools()
        self._functions: dict[tuple[str, str, str], PythonTool] = {}
        """By the names and the description of their tools."""
        self._mcp: McpServers | None = None
        """MCP servers, where there are any."""

    def load(self, tools: Iterable[AgentTool]) -> None:
        """Imports the Python functions among these tools. Raises ConfigError."""
        for tool in tools:
            if isinstance(tool, Tool) and tool.function:
                self._python(tool)

    def _python(self, tool: Tool) -> PythonTool:
        """Raises ConfigError."""
        key = tool.name, tool.function, tool.description
        if key not in self._functions:
            self._functions[key] = load(tool)
        return self._functions[key]

    async def close(self) -> None:
        await self._http.close()
        if self._mcp is not None:
            await self._mcp.close()

    def use(self, config: Config) -> None:
        """Connects to the MCP servers of a configuration that are new or others, and ends what it
        has no more. Their package is there: see `check_mcp`."""
        if config.mcp and self._mcp is None:
            from offhook.web.tools.mcp_servers_io import McpServers

            self._mcp = McpServers()
        if self._mcp is not None:
            self._mcp.use(config)

    async def started(self) -> None:
        """Waits for the MCP servers, for a while."""
        if self._mcp is not None:
            await self._mcp.started()

    def functions(self, agent: Agent, call: Call, fill: Fill) -> list[FunctionTool]:
        """Returns the tools of an agent for the model of a call."""
        tools = [tool for tool in agent.tools if isinstance(tool, Tool)]
        functions = [self._function(tool, call, fill) for tool in tools]
        if self._mcp is not None:
            functions += self._mcp.functions(agent, call, fill)
        return functions

    def _function(self, tool: Tool, call: Call, fill: Fill) -> FunctionTool:
        if tool.function:
            python = self._python(tool)

            async def run(arguments: Mapping[str, Any]) -> Any:
                return await python.run(tool, arguments, call.leg.info)

            defined = FunctionDefinition(
                tool.name, python.description, python.schema, tool.function
            )
            return function_of(defined, tool, call, fill, run)

        async def request(arguments: Mapping[str, Any]) -> Any:
            return await self._http.run(tool, arguments, fill)

        where = f"{tool.name} at {urlsplit(tool.url).netloc}"
        defined = FunctionDefinition(tool.name, tool.description, tool.schema_of_arguments, where)
        return function_of(defined, tool, call, fill, request)
