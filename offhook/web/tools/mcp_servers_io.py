"""The MCP servers whose tools the agents of a process have: a connection each, for all calls."""

import asyncio
from collections.abc import Callable
from functools import partial

from loguru import logger
from mcp_types import Tool

from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.directed_io import FunctionTool
from offhook.web.config.agents import Agent
from offhook.web.config.config import Config
from offhook.web.config.mcp import McpTools
from offhook.web.tools.function_io import Fill, FunctionDefinition, function_of
from offhook.web.tools.mcp_functions import (
    McpFunction,
    chosen,
    faults_of_tools,
    wanted_tools,
)
from offhook.web.tools.mcp_server_io import SharedServer

START_S = 5.0
"""Time in s that the start waits for MCP servers; those that have not answered then are waited for
while calls begin without their tools."""


class McpServers:
    """The servers of a configuration, and their connections."""

    def __init__(self) -> None:
        self._config = Config()
        self._servers: dict[str, SharedServer] = {}
        self._tasks = TaskSet()
        self._said: set[str] = set()
        """What was warned of."""

    def use(self, config: Config) -> None:
        """Connects to the servers of a configuration that are new or others, and ends what it has
        no more."""
        self._config = config
        for name, server in tuple(self._servers.items()):
            if config.mcp.get(name) == server.settings:
                server.changed.set()  # other tools of it may be wanted
            else:
                server.task.cancel()
                del self._servers[name]
        for name, settings in config.mcp.items():
            if name not in self._servers:
                server = SharedServer(name, settings, self._wants(name), self._review)
                self._servers[name] = server
                server.task = self._tasks.spawn(server.run(), f"MCP server {name}")

    async def started(self) -> None:
        """Waits until all servers have listed their tools or failed to, START_S at most."""
        waits = [asyncio.create_task(s.tried.wait()) for s in self._servers.values()]
        if waits:
            _, late = await asyncio.wait(waits, timeout=START_S)
            for wait in late:
                wait.cancel()
        for server in self._servers.values():
            if not server.tried.is_set():
                words = "the MCP server {} has not answered yet: calls have the other tools"
                logger.warning(words, server.name)

    def faults(self) -> list[str]:
        """Returns which servers have not listed their tools, and what agents lack of the others, a
        line each."""
        silent = [
            f"the MCP server {server.name}: {server.why or 'it has not answered yet'}; agents are "
            "without its tools"
            for server in self._servers.values()
            if not server.has_listed
        ]
        return [*silent, *sorted(self._said)]

    async def close(self) -> None:
        await self._tasks.close()

    def imports(self, tool: McpTools, read: object) -> None:
        """Nothing is imported for a server's tools."""

    def functions(self, tool: McpTools, agent: Agent, call: Call, fill: Fill) -> list[FunctionTool]:
        """Returns a server's tools that an agent has for the model of a call."""
        found = chosen(agent, self._listed)[0]
        return [self._function(e, f, call, fill) for e, f in found if e is tool]

    def names(self, tool: McpTools, agent: Agent) -> list[str] | None:
        """Returns the functions that an agent has of a server; None as long as that has not listed
        its tools."""
        if tool.mcp not in self._listed:
            return None
        return [f.name for entry, f in chosen(agent, self._listed)[0] if entry is tool]

    @property
    def _listed(self) -> dict[str, tuple[McpFunction, ...]]:
        return {name: s.functions for name, s in self._servers.items() if s.has_listed}

    def _function(
        self, entry: McpTools, function: McpFunction, call: Call, fill: Fill
    ) -> FunctionTool:
        server = self._servers[entry.mcp]
        where = f"{function.name} of the MCP server {entry.mcp}"
        defined = FunctionDefinition(
            function.name, function.description, function.parameters, where
        )
        return function_of(defined, entry, call, fill, partial(server.call, function.tool))

    def _wants(self, name: str) -> Callable[[Tool], bool]:
        def wants(tool: Tool) -> bool:
            names = wanted_tools(self._config, name)
            return names is None or tool.name in names

        return wants

    def _review(self) -> None:
        """Warns of what agents should have and do not, once."""
        faults = {
            *faults_of_tools(self._config, self._listed),
            *(f"MCP server {s.name}: {f}" for s in self._servers.values() for f in s.faults()),
        }
        for fault in sorted(faults - self._said):
            logger.warning("{}", fault)
        self._said = faults
