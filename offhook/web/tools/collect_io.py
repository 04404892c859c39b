"""The tool with which a model notes the details of a caller."""

from collections.abc import Mapping
from typing import Any

from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.directed_io import FunctionTool
from offhook.pipeline.conversation.events import DetailNoted
from offhook.pipeline.speech.redact import MASK
from offhook.web.config.agents import NOTE, Agent
from offhook.web.config.tools import ToolOptions
from offhook.web.tools.collected import Details
from offhook.web.tools.function_io import Fill, FunctionDefinition, function_of, turns_of

_DESCRIPTION = (
    "Notes details that the caller has given, one or several. Its result says what is noted, what "
    "the caller has to agree to first, what is wrong, and what is still missing."
)


def note_details(agent: Agent, call: Call, fill: Fill) -> FunctionTool:
    """Returns the tool for the model of a call."""
    told = {name: detail.filled(fill) for name, detail in agent.collect.items()}
    details = Details(told, call.leg.collected)

    async def run(arguments: Mapping[str, Any]) -> Any:
        recording = call.leg.recording
        for name, value in arguments.items():
            is_value = isinstance(value, str | int | float) and not isinstance(value, bool)
            if is_value and name in told and told[name].secret:
                recording.withhold(str(value))
        noted, result = details.give(arguments, turns_of(call))
        for name, value in noted.items():
            text = MASK if told[name].secret else str(value)
            call.emit(DetailNoted(call.leg.heard_ms, name, text))
        if any(told[name].secret for name in noted) and not details.open_secrets():
            recording.resume_if_paused_by("agent", "detail")
        return result

    properties = {name: detail.json_schema() for name, detail in told.items()}
    parameters = {"type": "object", "properties": properties}
    defined = FunctionDefinition(NOTE, _DESCRIPTION, parameters, NOTE)
    return function_of(defined, ToolOptions(), call, fill, run)
