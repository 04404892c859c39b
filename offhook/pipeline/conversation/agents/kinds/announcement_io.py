"""Makes the agent of a call that says one thing."""

import asyncio

from loguru import logger
from pipecat.frames.frames import Frame, LLMContextFrame, StartFrame
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from offhook.media.leg import LegError
from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentContext
from offhook.pipeline.conversation.agents.kinds.announcement import ANNOUNCEMENT
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.events import AgentTurn, Event, TransferFailed
from offhook.pipeline.conversation.sentences import Occasion

MAX_S = 180.0
"""Time in s after which the announcement counts as over even if the voice does not say so."""


class Announcing(FrameProcessor):
    """Waits until the greeting has been played, and then ends the agent's part. It answers
    nothing."""

    def __init__(self, call: Call, transfer: str, *, is_over: bool = False) -> None:
        """`is_over`: it was played at another server; the caller waits in a queue again, as there,
        and nothing is left to do unless that fails."""
        super().__init__()
        self._call = call
        self._transfer = "" if is_over else transfer
        self._is_over = is_over
        self._played = asyncio.Event()
        self._parting: asyncio.Task[None] | None = None
        call.listeners.append(self._listen)

    def _listen(self, event: Event) -> None:
        if isinstance(event, TransferFailed if self._is_over else AgentTurn):
            self._played.set()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, StartFrame):
            self._parting = self.create_task(self._part(), "part")
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)

    async def cleanup(self) -> None:
        if self._parting is not None:
            await self.cancel_task(self._parting)
        await super().cleanup()

    async def _part(self) -> None:
        try:
            await asyncio.wait_for(self._played.wait(), None if self._is_over else MAX_S)
        except TimeoutError:
            logger.warning("{}: the announcement was not played", self._call.leg.call_id)
        if self._transfer:
            try:
                return await self._call.transfer(self._transfer)
            except LegError as error:
                level = "WARNING" if self._call.leg.closed is None else "INFO"  # who has hung up
                logger.log(level, "{}: not transferred: {}", self._call.leg.call_id, error)
        if self._transfer or self._is_over:
            await self._call.say(self._call.sentence(Occasion.GOODBYE))
        await self._call.hang_up()


def make(context: AgentContext) -> Agent:
    waits = bool(context.call.leg.place)
    processor = Announcing(context.call, context.settings.transfer, is_over=waits)
    return Agent(ANNOUNCEMENT.name, processor, greeting_interruptible=False)
