"""What a model, a program and the operator may do with the recording of a call."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from offhook.media.line_recording import By, LineRecording, NotRecorded
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.directed_io import FunctionTool
from offhook.pipeline.conversation.sentences import Occasion
from offhook.web.config.agents import Agent
from offhook.web.config.tools import ToolOptions
from offhook.web.tools.function_io import Fill, FunctionDefinition, function_of
from offhook.web.tools.tool_result import ToolFailed

RecordingAction = Literal["pause", "resume", "start", "stop"]
_DESCRIPTIONS: Mapping[str, str] = {
    "pause_recording": "Pauses the recording of the call, also of what is said. Call it before you "
    "ask for a card number or another secret.",
    "resume_recording": "Goes on recording, once the secret has been said.",
    "start_recording": "Begins to record the call; the caller is told, if the server says so.",
    "stop_recording": "Ends the recording of the call.",
}
_ACTIONS: Mapping[RecordingAction, Callable[[LineRecording, By], bool]] = {
    "pause": LineRecording.pause,
    "resume": LineRecording.resume,
    "start": LineRecording.start,
    "stop": LineRecording.stop,
}
ACTIONS = tuple(_ACTIONS)


async def change_recording(call: Call, action: RecordingAction, by: By) -> str:
    """Changes the recording of a call; returns its state then, "on", "off" or "paused". When it is
    started, the caller hears the notice, if there is one. Raises NotRecorded."""
    recording = call.leg.recording
    changed = _ACTIONS[action](recording, by)
    state = recording.state
    if changed and action == "start" and recording.notice and not call.away:
        await call.say(recording.notice, Occasion.RECORDED)
    return state


def recording_tools(agent: Agent, call: Call, fill: Fill) -> list[FunctionTool]:
    """Returns the tools with which the model of a call changes its recording."""
    return [_tool(name, call, fill) for name in agent.own_recording_tools]


def _tool(name: str, call: Call, fill: Fill) -> FunctionTool:
    action: Any = name.removesuffix("_recording")

    async def run(arguments: Mapping[str, Any]) -> dict[str, str]:
        try:
            return {"recording": await change_recording(call, action, "agent")}
        except NotRecorded as error:
            raise ToolFailed(str(error)) from error

    nothing = {"type": "object", "properties": {}}
    defined = FunctionDefinition(name, _DESCRIPTIONS[name], nothing, name)
    return function_of(defined, ToolOptions(), call, fill, run)
