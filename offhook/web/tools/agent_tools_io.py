"""The tools of agents: requests, Python functions, those of MCP servers, and the search of their
documents."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.directed_io import FunctionTool
from offhook.pipeline.conversation.passages import FindPassages
from offhook.web.config.agents import NOTE, SEARCH, Agent, handoff_tool
from offhook.web.config.config import Config
from offhook.web.config.mcp import McpTools
from offhook.web.config.plugins import key_path, settings_of
from offhook.web.config.tools import HttpTool, PythonFunction, ToolOptions
from offhook.web.tools.collect_io import note_details
from offhook.web.tools.function_io import Fill
from offhook.web.tools.http_tool_io import HttpTools
from offhook.web.tools.python_tool_io import PythonFunctions, Read
from offhook.web.tools.recording_io import recording_tools
from offhook.web.tools.waiting_sound import length_of

if TYPE_CHECKING:  # with documents, or an MCP server: what few agents have takes memory
    from offhook.web.tools.knowledge.knowledge_io import KnowledgeBases
    from offhook.web.tools.mcp_servers_io import McpServers


StandIns = Callable[
    [Agent, Sequence[tuple[FunctionTool, ToolOptions | None]], Call, Fill], list[FunctionTool]
]
"""Returns what the model of a call has in place of an agent's tools, each given with its options;
None: it is one that the agent has for its documents or details."""


class ToolKind(Protocol):
    """The tools of one kind, of all calls of a process."""

    def imports(self, tool: Any, read: Read) -> Callable[[], str] | None:
        """Returns what imports a tool, whose settings are validated by `read`, and returns its
        signature, or raises ConfigError; None: nothing is imported for it."""

    def functions(self, tool: Any, agent: Agent, call: Call, fill: Fill) -> Sequence[FunctionTool]:
        """Returns the functions of one of an agent's tools for the model of a call."""

    async def close(self) -> None: ...


class AgentTools:
    """The tools of all calls of a process."""

    def __init__(self) -> None:
        self._functions = PythonFunctions()
        self._kinds: dict[type, ToolKind] = {
            HttpTool: HttpTools(),
            PythonFunction: self._functions,
        }
        """By the classes of their tables; MCP servers come with the first one that there is."""
        self.stand_ins: StandIns | None = None
        """Answers tools in their place where conversations are tried; None: they run."""
        self._knowledge: KnowledgeBases | None = None
        self._mcp: McpServers | None = None

    def imports(self, config: Config) -> dict[str, Callable[[], str]]:
        """Returns what imports the tools of a configuration and reads their sounds, by where and
        what they are. Each returns the tool's signature, or the length of the sound, or raises
        ConfigError."""
        found: dict[str, Callable[[], str]] = {}
        for where, agent in config.named_agents().items():
            for number, tool in enumerate(agent.tools):
                read = partial(settings_of, config, (*key_path(where), "tools", number, "settings"))
                kind = self._kinds.get(type(tool))
                if kind is not None and (load := kind.imports(tool, read)) is not None:
                    found[f"{where} {tool.function_names[0]}"] = load
                if tool.sound:
                    found[f"{where} {tool.sound}"] = partial(length_of, tool.sound)
        return found

    def load(self, config: Config) -> None:
        """Imports the tools of a configuration. Raises ConfigError, and keeps those that there
        were."""
        with self._functions.all_or_none():
            for load in self.imports(config).values():
                load()

    async def close(self) -> None:
        for kind in self._kinds.values():
            await kind.close()
        if self._knowledge is not None:
            await self._knowledge.close()

    def use(self, config: Config) -> None:
        """Reads the documents of a configuration and connects to its MCP servers, those that are
        new or others, and ends what it has no more. Their package is there: see `check_mcp`."""
        agents = config.named_agents().values()
        if self._knowledge is None and any(agent.knowledge for agent in agents):
            from offhook.web.tools.knowledge.knowledge_io import KnowledgeBases

            self._knowledge = KnowledgeBases()
        if self._knowledge is not None:
            self._knowledge.use(config)
        if config.mcp and self._mcp is None:
            from offhook.web.tools.mcp_servers_io import McpServers

            self._kinds[McpTools] = self._mcp = McpServers()
        if self._mcp is not None:
            self._mcp.use(config)

    async def started(self) -> None:
        """Waits for documents and MCP servers, for a while."""
        if self._knowledge is not None:
            await self._knowledge.started()
        if self._mcp is not None:
            await self._mcp.started()

    def faults(self) -> list[str]:
        """Returns which MCP servers agents do without, and why, a line each."""
        return self._mcp.faults() if self._mcp is not None else []

    def names(self, agent: Agent) -> list[str]:
        """Returns the names of the functions that the model of an agent has now, beside those of
        every call. Of an MCP server that has not listed its tools, they are what the configuration
        has of them."""
        found: list[str] = []
        for tool in agent.tools:
            if not isinstance(tool, McpTools):
                found += tool.function_names
            elif self._mcp is not None and (listed := self._mcp.names(tool, agent)) is not None:
                found += listed
            else:
                found += tool.function_names or [f"all of {tool.mcp}"]
        found += map(handoff_tool, agent.handoffs)
        found += [SEARCH] if agent.knowledge else []
        found += [NOTE] if agent.collect else []
        found += agent.own_recording_tools
        flow = agent.loaded_flow
        of_flow = () if flow is None else (f for _, f in flow.functions() if f.is_of_the_flow)
        return list(dict.fromkeys([*found, *(function.name for function in of_flow)]))

    def functions(self, agent: Agent, call: Call, fill: Fill) -> list[FunctionTool]:
        """Returns the tools of an agent for the model of a call."""
        found: list[tuple[FunctionTool, ToolOptions | None]] = []
        for tool in agent.tools:
            if kind := self._kinds.get(type(tool)):
                found += [(one, tool) for one in kind.functions(tool, agent, call, fill)]
        if agent.collect:
            found.append((note_details(agent, call, fill), None))
        if agent.knowledge and self._knowledge is not None:
            found.append((self._knowledge.function(agent, call, fill), None))
        found += [(tool, None) for tool in recording_tools(agent, call, fill)]
        if self.stand_ins is not None:
            return self.stand_ins(agent, found, call, fill)
        return [function for function, _ in found]

    def finder(self, agent: Agent) -> FindPassages | None:
        """Returns what finds the passages that are in an agent's requests; None if none are."""
        return self._knowledge.finder(agent) if self._knowledge is not None else None
