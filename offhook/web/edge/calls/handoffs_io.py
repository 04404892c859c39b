"""The agents of a call, one after the other: the model of each may hand the call over."""

import asyncio
from dataclasses import replace
from typing import Any

from loguru import logger
from pipecat.frames.frames import FunctionCallResultProperties
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import FunctionCallParams

from offhook.media.tasks_io import Task, TaskSet
from offhook.pipeline.conversation.call_info import taken_over
from offhook.pipeline.conversation.call_io import Agent, Call, Engines, Successor
from offhook.pipeline.conversation.directed_io import FunctionTool, Infer
from offhook.pipeline.conversation.events import AgentChanged
from offhook.web.config.agents import DEFAULT, handoff_tool
from offhook.web.config.agents import Agent as AgentSettings
from offhook.web.edge.agents_io import CallAgents
from offhook.web.edge.resume.saved_call import Handoff

MAX_HANDOFFS = 10
"""Maximum number of times that agents hand over one call; then the model is told that it cannot."""
MAX_REASON_CHARS = 500
"""Maximum characters of why a call is handed over; the rest is cut off."""
MAX_SUMMARY_CHARS = 2000
"""Maximum characters of a summary for the next agent; the rest is cut off."""
SUMMARY_S = 5.0
"""Time limit in s for a summary, from the decision to hand over; then the next agent knows the
whole conversation."""
SUMMARY_TOKENS = 400
_SUMMARIZE = (
    "Summarize this telephone call for a colleague who takes it over now: what the caller wants, "
    "every name, number and date that was said, and what was done. At most 120 words, as plain "
    "text. Answer with the summary alone."
)
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
    the name of the one that it begins with, and `last` the hand-over before, of a call that is
    continued."""

    def __init__(
        self, agents: CallAgents, engines: Engines, agent: str, last: Handoff | None
    ) -> None:
        self.last = last
        """The last hand-over; None: the call is still with the agent that it began with."""
        self._agents, self._engines = agents, engines
        self._agent = agent or DEFAULT
        self._left = MAX_HANDOFFS
        self._under_way = False
        self._summaries = TaskSet()

    async def close(self) -> None:
        await self._summaries.close()

    def make(self, settings: AgentSettings, call: Call) -> Agent:
        """Makes an agent, with tools to hand the call over."""
        told = "" if self.last is None else taken_over(self.last.before, self.last.told)
        made = self._agents.make(settings, call, told)
        tools = (self._tool(name, call, made.infer) for name in settings.handoffs)
        return replace(made, tools=[*made.tools, *tools])

    def _tool(self, name: str, call: Call, infer: Infer | None) -> FunctionTool:
        """Returns the tool with which a model hands a call over to an agent."""

        async def hand_over(params: FunctionCallParams) -> None:
            target = self._agents.find(name)
            if target is None or self._under_way or not self._left:
                why = "there is no such agent any more"
                if self._under_way:
                    why = "it is being handed over already"
                elif not self._left:
                    why = "it was handed over too often, so go on with it yourself"
                return await params.result_callback({"error": f"not handed over: {why}"})
            reason = str(params.arguments.get("reason") or "")[:MAX_REASON_CHARS]
            self._under_way = True
            summary: Task | None = None
            if target.handoff_context == "summary" and infer is not None:
                work = self._summarize(call, infer)
                summary = self._summaries.spawn(work, f"summary {call.leg.call_id}")
            try:
                await call.wait_until_heard()
            except asyncio.CancelledError:  # the caller has something to say to this agent
                self._under_way = False
                if summary is not None:
                    summary.cancel()
                raise
            await params.result_callback({"status": "handed over"}, properties=_NOT_AGAIN)
            await call.change_agent(lambda: self._successor(name, target, call, reason, summary))

        about = self._agents.find(name)
        does = about.description if about is not None else ""
        description = (
            f"Hand the caller over to another agent, {name}{f': {does}' if does else ''}. Say in "
            "one short sentence that you do; it goes on with the conversation."
        )
        return FunctionTool(handoff_tool(name), description, _REASON, hand_over)

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
            target.sentences,
            keeps,
        )

    async def _summarize(self, call: Call, infer: Infer) -> str:
        """Returns a summary of the conversation by the model that has led it; "" if there is none
        in time."""
        said: list[Any] = [{"role": role, "content": text} for role, text in call.transcript()]
        asked: Any = {"role": "user", "content": "(summarize the call now)"}
        try:
            async with asyncio.timeout(SUMMARY_S):
                answer = await infer(LLMContext([*said, asked]), _SUMMARIZE, SUMMARY_TOKENS)
        except Exception as error:  # the client's, as of a failing server
            words = str(error) or type(error).__name__
            logger.warning("{}: no summary: {}", call.leg.call_id, words)
            return ""
        return answer.text.strip()[:MAX_SUMMARY_CHARS]
