"""The tools of agents: what the model may call, and what it and the caller learn of it."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from loguru import logger
from pipecat.frames.frames import FunctionCallResultProperties
from pipecat.services.llm_service import FunctionCallParams

from offhook.pipeline.conversation.agents.agent_faults import Action, Fault, Place
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.directed_io import FunctionTool
from offhook.web.config.tools import Tool
from offhook.web.tools.http_tool_io import HttpTools
from offhook.web.tools.python_tool_io import PythonTool, load
from offhook.web.tools.tool_result import ToolFailed
from offhook.web.tools.tool_use import ToolUse

Fill = Callable[[str], str]
"""Puts the call's variables into a text."""


class AgentTools:
    """The tools of all calls of a process."""

    def __init__(self) -> None:
        self._http = HttpTools()
        self._functions: dict[tuple[str, str, str], PythonTool] = {}
        """By the names and the description of their tools."""

    def load(self, tools: Iterable[Tool]) -> None:
        """Imports the Python functions among these tools. Raises ConfigError."""
        for tool in tools:
            if tool.function:
                self._python(tool)

    def _python(self, tool: Tool) -> PythonTool:
        """Raises ConfigError."""
        key = tool.name, tool.function, tool.description
        if key not in self._functions:
            self._functions[key] = load(tool)
        return self._functions[key]

    async def close(self) -> None:
        await self._http.close()

    def function(self, tool: Tool, call: Call, fill: Fill) -> FunctionTool:
        """Returns a tool for the model of a call."""
        use = ToolUse(confirm=tool.confirm, once=tool.once)
        python = self._python(tool) if tool.function else None
        where = tool.function or f"{tool.name} at {urlsplit(tool.url).netloc}"

        async def run(params: FunctionCallParams) -> None:
            turns = sum(who == "user" for who, _ in call.transcript())  # typed ones too
            refusal = use.begin(params.arguments, turns)
            if refusal is not None:
                await params.result_callback(refusal)
                return
            saying = asyncio.create_task(
                _say_meanwhile(tool.say_after, fill(tool.say), call), name=f"tool {tool.name}"
            )
            began = monotonic()
            excuse, again = "", not tool.end_turn
            try:
                result = await self._run(tool, python, params.arguments, call, fill)
            except ToolFailed as error:
                result = {"error": str(error)}
                cause = f"{where}: {error}"
                call.agent_failed(Fault.TOOL_FAILED, Place.TOOL, Action.TELL_MODEL, cause)
                if excuse := fill(tool.on_failure):
                    result["said_to_the_caller"] = excuse
                again = not excuse
            else:
                use.end(result)
                took = round((monotonic() - began) * 1000)
                logger.info("{}: tool {}: {} ms", call.leg.call_id, where, took)
            finally:
                saying.cancel()
            properties = FunctionCallResultProperties(run_llm=again)
            await params.result_callback(result, properties=properties)
            if excuse:
                await call.say(excuse)

        if python is not None:
            return FunctionTool(tool.name, python.description, python.schema, run)
        return FunctionTool(tool.name, tool.description, tool.schema_of_arguments, run)

    async def _run(
        self,
        tool: Tool,
        python: PythonTool | None,
        arguments: Mapping[str, Any],
        call: Call,
        fill: Fill,
    ) -> Any:
        """Raises ToolFailed."""
        if python is not None:
            return await python.run(tool, arguments, call.leg.info)
        return await self._http.run(tool, arguments, fill)


async def _say_meanwhile(after_s: float, text: str, call: Call) -> None:
    if text:
        await asyncio.sleep(after_s)
        await call.say(text)
