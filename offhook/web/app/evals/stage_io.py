"""The tools of conversations that are tried: a scenario's stubs answer in their place, and what was
called is noted."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pipecat.services.llm_service import FunctionCallParams

from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.directed_io import FunctionTool
from offhook.web.app.evals.coverage import Coverage, Feature
from offhook.web.app.evals.stubs import Stub
from offhook.web.app.evals.visit_io import Visit
from offhook.web.config.agents import DEFAULT, Agent
from offhook.web.config.config import Config
from offhook.web.config.mcp import McpTools
from offhook.web.config.tools import NamedTool, ToolOptions, schema_of
from offhook.web.tools.function_io import Fill, FunctionDefinition, Run, function_of
from offhook.web.tools.tool_result import ToolFailed, shown

Given = tuple[FunctionTool, ToolOptions | None]
"""A tool, with its options if it is of the configuration."""


class Stage:
    """Stands in for the tools of an edge's calls."""

    def __init__(self, config: Config, coverage: Coverage) -> None:
        self._names = {id(agent): name for name, agent in config.agents.items()}
        """Of agents, by their settings."""
        self._names.setdefault(id(config.agent), DEFAULT)
        self._coverage = coverage
        self._visits: dict[str, Visit] = {}
        """By the ids of their calls."""

    def enter(self, call_id: str, visit: Visit) -> None:
        """A call is that of a conversation."""
        self._visits[call_id] = visit

    def stand_in(
        self, agent: Agent, given: Sequence[Given], call: Call, fill: Fill
    ) -> list[FunctionTool]:
        """Returns what the model of a call has in place of an agent's tools."""
        visit = self._visits.get(call.leg.call_id)
        if visit is None:
            return [function for function, _ in given]
        stubs = visit.scenario.stubs
        found = [self._acted(*one, stubs, call, fill) for one in given]
        names = {function.name for function in found}
        servers = [tool for tool in agent.tools if isinstance(tool, McpTools)]
        for name, stub in stubs.items():
            owner = next((tool for tool in servers if _may_have(tool, name)), None)
            if name not in names and owner is not None and stub.parameters is not None:
                schema = schema_of(dict(stub.parameters))
                missing = FunctionTool(name, stub.description, schema, _nothing)
                found.append(self._acted(missing, owner, stubs, call, fill))
        who = self._names.get(id(agent))
        if who is None:  # the fallback of another one
            return found
        return [self._noted(function, who, visit) for function in found]

    def _acted(
        self,
        function: FunctionTool,
        tool: ToolOptions | None,
        stubs: Mapping[str, Stub],
        call: Call,
        fill: Fill,
    ) -> FunctionTool:
        """Returns a tool, or what a stub makes of it."""
        stub = stubs.get(function.name)
        if stub is None or tool is None:
            return function
        about = function.to_default_dict()
        defined = FunctionDefinition(
            function.name, function.description, about["parameters"], f"stub of {function.name}"
        )
        return function_of(defined, tool, call, fill, _run(stub, tool))

    def _noted(self, function: FunctionTool, agent: str, visit: Visit) -> FunctionTool:
        """Returns a tool whose calls are noted."""
        feature, handle = Feature("tool", agent, function.name), function.handler
        assert handle is not None
        self._coverage.offer(feature)

        async def noted(params: FunctionCallParams) -> None:
            visit.used.add(feature)
            await handle(params)

        parameters = function.to_default_dict()["parameters"]
        return FunctionTool(function.name, function.description, parameters, noted)


def _may_have(tool: McpTools, name: str) -> bool:
    return not tool.names or name in tool.function_names


async def _nothing(params: FunctionCallParams) -> None:
    """The stub answers."""


def _run(stub: Stub, tool: ToolOptions) -> Run:
    """Returns what a stub does in a tool's place, within its time."""
    seconds = tool.seconds if isinstance(tool, NamedTool) else None
    fields = tool.fields if isinstance(tool, NamedTool) else ()
    calls = 0

    async def run(arguments: Mapping[str, Any]) -> Any:
        nonlocal calls
        answer = stub.answer(calls)
        calls += 1
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(answer.delay_ms / 1000)
        except TimeoutError as error:
            raise ToolFailed(f"no response within {seconds:g} s") from error
        if answer.failure:
            raise ToolFailed(answer.failure)
        if answer.result is None:
            return {"status": "done"}
        return shown(answer.result, fields)

    return run
