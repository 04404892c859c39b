"""A tool as the model of a call has it, and what the model and the caller learn of it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import Any

from loguru import logger
from pipecat.frames.frames import FunctionCallResultProperties
from pipecat.services.llm_service import FunctionCallParams

from offhook.pipeline.conversation.agents.agent_faults import Action, Fault, Place
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.directed_io import FunctionTool
from offhook.pipeline.conversation.events import TOLD_CHARACTERS, ToolUsed
from offhook.pipeline.conversation.sentences import Occasion
from offhook.web.config.tools import ToolOptions
from offhook.web.tools.tool_result import ToolFailed
from offhook.web.tools.tool_use import ToolUse, has_succeeded
from offhook.web.tools.waiting_sound import waiting_sound

Fill = Callable[[str], str]
"""Puts the call's variables into a text."""
Run = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""Runs a tool with these arguments, and returns what the model sees. Raises ToolFailed."""


@dataclass(frozen=True)
class FunctionDefinition:
    """What a model is told of a tool, and the log."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of an object."""
    where: str
    """What runs it, for the log."""


def function_of(
    tool: FunctionDefinition, options: ToolOptions, call: Call, fill: Fill, run: Run
) -> FunctionTool:
    """Returns a tool for the model of a call."""
    use = ToolUse(confirm=options.confirm, once=options.once)

    async def handle(params: FunctionCallParams) -> None:
        refusal = use.begin(params.arguments, turns_of(call))
        if refusal is not None:
            await params.result_callback(refusal)
            return
        saying = asyncio.create_task(
            _bridge_the_wait(options, fill(options.say), call), name=f"tool {tool.name}"
        )
        began, at_ms = monotonic(), call.leg.heard_ms
        excuse, again = "", not options.end_turn
        try:
            result = await run(params.arguments)
        except ToolFailed as error:
            result = {"error": str(error)}
            cause = f"{tool.where}: {error}"
            call.agent_failed(Fault.TOOL_FAILED, Place.TOOL, Action.TELL_MODEL, cause)
            if excuse := fill(options.on_failure):
                result["said_to_the_caller"] = excuse
            again = not excuse
        else:
            use.end(result)
        finally:
            saying.cancel()
        took = round((monotonic() - began) * 1000)
        logger.info("{}: tool {}: {} ms", call.leg.call_id, tool.where, took)
        call.emit(
            ToolUsed(
                at_ms,
                tool.name,
                json_beginning(params.arguments),
                json_beginning(result),
                took,
                failed=not has_succeeded(result),
            )
        )
        properties = FunctionCallResultProperties(run_llm=again)
        await params.result_callback(result, properties=properties)
        if excuse:
            await call.say(excuse, Occasion.TROUBLE)

    return FunctionTool(tool.name, tool.description, tool.parameters, handle)


def json_beginning(value: Any) -> str:
    """Returns the beginning of a value in JSON, as events tell it."""
    return json.dumps(value, ensure_ascii=False, default=str)[:TOLD_CHARACTERS]


def turns_of(call: Call) -> int:
    """Returns how often the caller has spoken, or typed."""
    return sum(who == "user" for who, _ in call.transcript())


async def _bridge_the_wait(options: ToolOptions, text: str, call: Call) -> None:
    """Does not return."""
    await asyncio.sleep(options.say_after)
    with call.leg.playing(waiting_sound(options.sound)) if options.sound else nullcontext():
        while text:
            call.fillers.add(text)
            await call.say(text, Occasion.WAIT)
            if not options.say_again:
                break
            await asyncio.sleep(options.say_again)
        await asyncio.Event().wait()
