"""The agents of a call, one after the other: the model of each may hand the call over."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from pipecat.frames.frames import FunctionCallResultProperties
from pipecat.services.llm_service import FunctionCallParams

from offhook.media.leg import LegError
from offhook.media.tasks_io import Task, TaskSet
from offhook.pipeline.conversation.agents.kinds.guide import NO_GUIDE
from offhook.pipeline.conversation.call.call_pipeline_io import AgentChangeFrame
from offhook.pipeline.conversation.call_info import taken_over
from offhook.pipeline.conversation.call_io import Agent, Call, Engines, Successor
from offhook.pipeline.conversation.directed_io import FunctionTool, Infer
from offhook.pipeline.conversation.events import AgentChanged
from offhook.pipeline.conversation.summary_io import summary_of
from offhook.web.config.agents import DEFAULT, handoff_tool
from offhook.web.config.agents import Agent as AgentSettings
from offhook.web.edge.agents_io import CallAgents
from offhook.web.edge.resume.saved_call import Handoff
from offhook.web.tools.call_flow_io import CallFlow

MAX_HANDOFFS = 10
"""Maximum number of times that agents hand over one call; then the model is told that it cannot."""
MAX_REASON_CHARS = 500
"""Maximum characters of why a call is handed over; the rest is cut off."""
_NOT_AGAIN = FunctionCallResultProperties(run_llm=False)
_REASON = {
    "type": "object",
    "properties": {
        "reason": {
            "type": "string",
            "description": "What the caller wants, and what the other agent has to know.",
        }
    },
    "required": ["reason"],
}


class Handoffs:
    """Makes the agents of one call. `engines` are those of its process when it began; `agent` is
    the name of the one that it begins with, `last` the hand-over before, of a call that is
    continued, and `find` returns an agent by its name, None if there is none any more."""

    def __init__(
        self,
        agents: CallAgents,
        engines: Engines,
        agent: str,
        last: Handoff | None,
        find: Callable[[str], AgentSettings | None],
    ) -> None:
        self.last = last
        """The last hand-over; None: the call is still with the agent that it began with."""
        self.infer: Infer | None = None
        """What answers outside the conversation for the agent that has the call; None if that is no
        language model."""
        self._agents, self._engines, self._find = agents, engines, find
        self._agent = agent or DEFAULT
        self._left = MAX_HANDOFFS
        self._under_way = False
        self._in_place = asyncio.Event()
        """Set when the agent of the last hand-over has the place."""
        self._tasks = TaskSet()
        """Summaries, and what flows do."""

    async def close(self) -> None:
        await self._tasks.close()

    def make(self, settings: AgentSettings, call: Call) -> Agent:
        """Makes an agent, with tools to hand the call over, which its flow leads if it has one."""
        told = "" if self.last is None else taken_over(self.last.before, self.last.told)
        flow = None
        if settings.loaded_flow is not None:
            fill = self._agents.fill(settings, call.leg.info)
            secrets = {name for name, detail in settings.collect.items() if detail.secret}
            flow = CallFlow(settings.loaded_flow, call, fill, self._tasks, self._hand_over, secrets)
        else:  # the node that was left may have asked for a secret
            call.leg.recording.resume_if_paused_by("detail")
        made = self._agents.make(settings, call, told, flow or NO_GUIDE)
        self.infer = made.infer
        tools = (self._tool(name, call, made.infer) for name in settings.handoffs)
        made = replace(made, tools=[*made.tools, *tools])
        return made if flow is None else flow.led(made)

    def _tool(self, name: str, call: Call, infer: Infer | None) -> FunctionTool:
        """Returns the tool with which a model hands a call over to an agent."""

        async def hand_over(params: FunctionCallParams) -> None:
            reason = str(params.arguments.get("reason") or "")[:MAX_REASON_CHARS]
            done = partial(params.result_callback, {"status": "handed over"}, properties=_NOT_AGAIN)
            if why := await self._hand_over(name, call, infer, reason, done):
                await params.result_callback({"error": f"not handed over: {why}"})

        about = self._find(name)
        does = about.description if about is not None else ""
        description = (
            f"Hand the caller over to another agent, {name}{f': {does}' if does else ''}. Say in "
            "one short sentence that you do; it goes on with the conversation."
        )
        return FunctionTool(handoff_tool(name), description, _REASON, hand_over)

    async def _hand_over(
        self,
        name: str,
        call: Call,
        infer: Infer | None,
        reason: str,
        done: Callable[[], Awaitable[None]] | None = None,
    ) -> str:
        """Hands the call over once the caller has heard what was said before, and `done` was
        awaited. Returns why it is not handed over; "" if it is."""
        target = self._find(name)
        if self._under_way:
            return "it is being handed over already"
        if target is None:
            return "there is no such agent any more"
        if not self._left:
            return "it was handed over too often, so go on with it yourself"
        self._under_way = True
        summary: Task | None = None
        if target.handoff_context == "summary" and infer is not None:
            work = summary_of(call, infer)
            summary = self._tasks.spawn(work, f"summary {call.leg.call_id}")
        try:
            await call.wait_until_heard()
        except asyncio.CancelledError:  # the caller has something to say to this agent
            self._under_way = False
            if summary is not None:
                summary.cancel()
            raise
        if done is not None:
            await done()
        change = AgentChangeFrame(
            successor=lambda: self._successor(name, target, call, reason, summary)
        )
        self._in_place = change.in_place
        await call.change_agent(change)
        return ""

    async def hand_over(self, name: str, call: object, mailbox: str, reason: str) -> None:
        """Hands the call over without being asked by the agent; a message that the other one
        records is for `mailbox`. Returns once that one has the place. Raises LegError."""
        target = self._find(name)
        if target is None or not isinstance(call, Call):
            raise LegError(f"no agent {name} can take the call over")
        leg = call.leg
        if target.recorded("never") != "never":
            leg.recording.open = leg.recording.on_demand
        leg.info = replace(leg.info, diverted_from=mailbox)
        if why := await self._hand_over(name, call, self.infer, reason):
            raise LegError(f"not handed over to {name}: {why}")
        await self._in_place.wait()

    async def _successor(
        self, name: str, target: AgentSettings, call: Call, reason: str, summary: Task | None
    ) -> Successor:
        """Returns the next agent, whom the caller's words reach from now on."""
        told, keeps = reason, target.handoff_context != "reset"
        if summary is not None and (text := await summary):
            told, keeps = f"{reason}\n{text}".strip(), False
        before, self._agent = self._agent, name
        self.last = Handoff(name, before, told)
        self._left -= 1
        self._under_way = False
        call.emit(AgentChanged(call.leg.heard_ms, name, before, told))
        return Successor(
            lambda call: self.make(target, call),
            self._agents.engines(target, self._engines),
            self._agents.sentences(target, call.leg.info),
            keeps,
        )
