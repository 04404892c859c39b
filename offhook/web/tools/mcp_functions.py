"""The tools of MCP servers as functions of language models: which of them an agent has."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offhook.web.config.agents import NOTE, SEARCH, Agent, handoff_tool
from offhook.web.config.config import Config
from offhook.web.config.mcp import McpTools, function_name
from offhook.web.config.tools import OWN, NamedTool

MAX_DESCRIPTION_CHARS = 4000
"""Maximum characters of a description of an MCP server's tool; the rest is cut off."""


@dataclass(frozen=True)
class McpFunction:
    """A tool of an MCP server."""

    tool: str
    """Its name at the server."""
    description: str
    parameters: dict[str, Any]
    """JSON Schema of an object, its arguments."""

    @property
    def name(self) -> str:
        """Its name for models, which do not take all that servers give."""
        return function_name(self.tool)


Listed = Mapping[str, Sequence[McpFunction]]
"""The tools of the servers that have listed them, by the servers' names."""


def wanted_tools(config: Config, server: str) -> frozenset[str] | None:
    """Returns the names of a server's tools that agents have; None: all of them."""
    entries = [
        tool
        for agent in config.named_agents().values()
        for tool in agent.tools
        if isinstance(tool, McpTools) and tool.mcp == server
    ]
    if any(not entry.names for entry in entries):
        return None
    return frozenset(name for entry in entries for name in entry.names)


def chosen(agent: Agent, listed: Listed) -> tuple[list[tuple[McpTools, McpFunction]], list[str]]:
    """Returns the tools of MCP servers that an agent has, with the entries that name them, and what
    it does not have, in words."""
    taken = {*OWN, *map(handoff_tool, agent.handoffs)}
    taken |= {t.name for t in agent.tools if isinstance(t, NamedTool)}
    found: list[tuple[McpTools, McpFunction]] = []
    faults: list[str] = []
    for entry in agent.tools:
        if not isinstance(entry, McpTools) or entry.mcp not in listed:
            continue
        there = {function.tool: function for function in listed[entry.mcp]}
        faults += [
            f"the MCP server {entry.mcp} has no tool {name}, or none that can be used"
            for name in entry.names
            if name not in there
        ]
        for name in entry.names or there:
            if (function := there.get(name)) is None:
                continue
            if function.name in taken:
                words = f"two tools are called {function.name}"
                faults.append(f"{words}: that of the MCP server {entry.mcp} is left out")
            else:
                taken.add(function.name)
                found.append((entry, function))
    return found, faults


def faults_of_tools(config: Config, listed: Listed) -> list[str]:
    """Returns what agents should have of MCP servers and do not, a line each."""
    return [
        f"{where}: {words}"
        for where, agent in config.named_agents().items()
        for words in (*chosen(agent, listed)[1], *_lacked_by_flow(agent, listed))
    ]


def _lacked_by_flow(agent: Agent, listed: Listed) -> Iterator[str]:
    """Yields the functions that an agent's flow names and no server has; none, as long as some of
    its servers have not listed theirs."""
    entries = [tool for tool in agent.tools if isinstance(tool, McpTools)]
    flow = agent.loaded_flow
    if flow is None or not entries or any(entry.mcp not in listed for entry in entries):
        return
    there = {*OWN, SEARCH, NOTE, *map(handoff_tool, agent.handoffs)}
    there |= {tool.name for tool in agent.tools if isinstance(tool, NamedTool)}
    there |= {function.name for _, function in chosen(agent, listed)[0]}
    for path, function in flow.functions():
        if not function.is_of_the_flow and function.name not in there:
            yield flow.placed(path, f"no MCP server has the function {function.name}")
