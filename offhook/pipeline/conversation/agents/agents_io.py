"""Agents that need no network, as Pipecat processors in place of an LLM service."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from pipecat.frames.frames import (
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from offhook.media.leg import LegError
from offhook.pipeline.conversation.agents.frontdesk import Action, FrontDesk, Reply, StoreMessage
from offhook.pipeline.conversation.agents.frontdesk_business import Business

OnAction = Callable[[Action], Awaitable[None]]
"""Executes an action. Raises LegError if a transfer is refused."""


class FrontDeskAgent(FrameProcessor):
    """The rule-based front desk in place of an LLM service. `caller` is the caller's number, if
    known. `until_heard` returns once what it has said was played, and may be cancelled."""

    def __init__(
        self,
        business: Business,
        on_action: OnAction,
        until_heard: Callable[[], Awaitable[object]],
        caller: str = "",
    ) -> None:
        super().__init__()
        self._desk = FrontDesk(business, caller=caller)
        self._on_action, self._until_heard = on_action, until_heard
        self._cut: str | None = None
        """What was heard of an interrupted reply, until the front desk is told."""
        self._coming: asyncio.Task[None] | None = None
        """Waits until the reply has been heard to its end; an interruption cancels it."""
        self._acting: asyncio.Task[None] | None = None

    def cut(self, heard: str) -> None:
        self._cut = heard

    def dialog(self) -> dict[str, Any]:
        """Returns the state of the dialog as JSON."""
        return self._desk.dialog()

    def restore(self, dialog: dict[str, Any]) -> None:
        """Restores what `dialog` returned elsewhere. Raises ValueError, changing nothing."""
        if dialog:
            self._desk.restore(dialog)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMContextFrame) and direction is FrameDirection.DOWNSTREAM:
            await self._answer(frame.context)
        else:
            await self.push_frame(frame, direction)
            if isinstance(frame, InterruptionFrame):
                await self._stop_waiting()
                if self._cut is not None:
                    self._desk.interrupted(self._cut)
                    self._cut = None

    async def _act_when_heard(self, action: Action) -> None:
        await self._until_heard()
        self._coming = None
        # A transfer takes time, and what interrupts then is not meant for it.
        self._acting = self.create_task(self._act(action), "act")

    async def _stop_waiting(self) -> None:
        if self._coming is not None:
            waiting, self._coming = self._coming, None
            await self.cancel_task(waiting)

    async def _act(self, action: Action) -> None:
        try:
            await self._on_action(action)
        except LegError as error:
            await self._say(self._desk.not_transferred(str(error), datetime.now()))

    async def cleanup(self) -> None:
        await self._stop_waiting()
        if self._acting is not None:
            await self.cancel_task(self._acting)
        await super().cleanup()

    async def _answer(self, context: LLMContext) -> None:
        heard = last_user_text(context)
        now = datetime.now()
        await self._say(self._desk.reply(heard, now) if heard else self._desk.greeting(now))

    async def prompt(self) -> None:
        """Called when the caller has been silent for a while."""
        reply = self._desk.silence(datetime.now())
        if reply is not None:
            await self._say(reply)

    async def returned(self) -> None:
        """Called when the caller is back from a transfer that failed."""
        await self._say(self._desk.not_transferred("", datetime.now()))

    async def _say(self, reply: Reply) -> None:
        await self._stop_waiting()
        await self.push_frame(LLMFullResponseStartFrame())
        await self.push_frame(LLMTextFrame(reply.text))
        await self.push_frame(LLMFullResponseEndFrame())
        if isinstance(reply.action, StoreMessage):
            await self._on_action(reply.action)  # executed even if the last words are interrupted
        elif reply.action is not None:
            self._coming = self.create_task(self._act_when_heard(reply.action), "until heard")


class SilentAgent(FrameProcessor):
    """Listens and never answers: for transcripts, and for measuring recognition alone."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMContextFrame):
            await self.push_frame(LLMFullResponseStartFrame())
            await self.push_frame(LLMFullResponseEndFrame())
        else:
            await self.push_frame(frame, direction)


def last_user_text(context: LLMContext) -> str:
    """Returns the caller's last words; "" where somebody else has spoken last, or nobody."""
    messages = context.messages
    if not messages:
        return ""
    last: Any = messages[-1]
    if last.get("role") != "user":
        return ""
    content = last["content"]
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if part.get("type") == "text")
