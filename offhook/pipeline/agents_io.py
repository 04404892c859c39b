"""The agents that need no network, as Pipecat processors in the place of an LLM service."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from pipecat.frames.frames import (
    BotStoppedSpeakingFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from offhook.pipeline.frontdesk import Action, Business, FrontDesk, Reply, TakeMessage

OnAction = Callable[[Action], Awaitable[None]]


class FrontDeskAgent(FrameProcessor):
    """The rule-based receptionist in the place of an LLM service."""

    def __init__(self, business: Business, on_action: OnAction) -> None:
        super().__init__()
        self._desk = FrontDesk(business)
        self._on_action = on_action
        self._cut: str | None = None
        """What was heard of the reply that was cut, until the desk is told."""
        self._action: Action | None = None
        """To be done when the reply has been heard to its end; an interruption voids it."""

    def cut(self, heard: str) -> None:
        self._cut = heard

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMContextFrame):
            await self._answer(frame.context)
        else:
            await self.push_frame(frame, direction)
            if isinstance(frame, InterruptionFrame):
                self._action = None
                if self._cut is not None:
                    self._desk.interrupted(self._cut)
                    self._cut = None
            elif isinstance(frame, BotStoppedSpeakingFrame) and self._action is not None:
                action, self._action = self._action, None
                await self._on_action(action)

    async def _answer(self, context: LLMContext) -> None:
        heard = _last_user_text(context)
        now = datetime.now()
        await self._say(self._desk.reply(heard, now) if heard else self._desk.greeting(now))

    async def prompt(self) -> None:
        """The caller has said nothing for a while."""
        reply = self._desk.silence(datetime.now())
        if reply is not None:
            await self._say(reply)

    async def _say(self, reply: Reply) -> None:
        await self.push_frame(LLMFullResponseStartFrame())
        await self.push_frame(LLMTextFrame(reply.text))
        await self.push_frame(LLMFullResponseEndFrame())
        if isinstance(reply.action, TakeMessage):
            await self._on_action(reply.action)  # said for good: not lost with the last words
        else:
            self._action = reply.action


class SilentAgent(FrameProcessor):
    """Listens and never answers: for transcripts, and for measuring the ears alone."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMContextFrame):
            await self.push_frame(LLMFullResponseStartFrame())
            await self.push_frame(LLMFullResponseEndFrame())
        else:
            await self.push_frame(frame, direction)


def _last_user_text(context: LLMContext) -> str:
    messages = context.messages
    if not messages:
        return ""
    last: Any = messages[-1]
    return str(last["content"]) if last.get("role") == "user" else ""
