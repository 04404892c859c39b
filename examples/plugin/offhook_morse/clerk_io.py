"""The clerk in a call: a Pipecat processor in place of a language model."""

from typing import Any

from pipecat.frames.frames import (
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentContext
from offhook.pipeline.conversation.call_io import Agent
from offhook_morse.clerk import CLERK, Settings


class Clerk(FrameProcessor):
    """Reads each telegram back, with its price."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            return await self.push_frame(frame, direction)
        await self.push_frame(LLMFullResponseStartFrame())
        await self.push_frame(LLMTextFrame(self._answer(frame.context.messages)))
        await self.push_frame(LLMFullResponseEndFrame())

    def _answer(self, messages: list[Any]) -> str:
        """Returns what to say to the caller's last words, if they are the last of the context."""
        last = messages[-1] if messages else {}
        if last.get("role") != "user":
            return f"This is {self._settings.office}. Your message, please."
        words = str(last["content"]).strip(" .?!")
        price = self._settings.cents_a_word * len(words.split())
        return f"I have: {words}, stop. That is {price} cents. Shall I send it, or change a word?"


def make(context: AgentContext) -> Agent:
    return Agent(CLERK.name, Clerk(context.settings))
