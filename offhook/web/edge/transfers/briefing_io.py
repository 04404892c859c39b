"""Briefs a person who is called for a caller: says who calls and why, and asks for a decision.

the person                       is answered by
has accepted at a desk           nothing: the caller is connected
has answered                     who calls and why, and how to accept or decline
says yes, or presses 1           nothing: the caller is connected
says no, or presses 2            goodbye
says something else, or nothing  the question again; the whole briefing if it was interrupted
decides nothing in TRIES         goodbye
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol

from pipecat.frames.frames import (
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from offhook.media.leg import LegError
from offhook.pipeline.conversation.agents.agents_io import last_user_text
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.events import AgentTurn, Dtmf, Event
from offhook.web.edge.transfers.decision import KEYS, Decision, decision

TRIES = 4
"""Times that a person is asked; then another one is called."""
EXTENSION_S = 10.0
"""Time in s for somebody to speak once the keys of an extension were sent; then the briefing begins
all the same."""


class Briefed(Protocol):
    """The person who is called."""

    keys: str
    """Those of a menu, pressed before."""
    has_agreed: bool
    """Has accepted already, at a desk."""

    async def introduction(self) -> str:
        """Return who calls, and why."""

    def decided(self, meaning: Decision | None) -> None:
        """The person has decided; None: nothing, in TRIES."""


class BriefingAgent(FrameProcessor):
    """In the place of a language model, in the call to a person."""

    def __init__(self, call: Call, person: Briefed, offer: str) -> None:
        """`offer` is the question."""
        super().__init__()
        self._call, self._person, self._offer = call, person, offer
        self._tries = 0
        self._was_heard = False
        """Whether the briefing was heard to its end."""
        self._over = False
        self._speaking: asyncio.Task[None] | None = None
        call.listeners.append(self._listen)

    def _listen(self, event: Event) -> None:
        match event:
            case Dtmf(digit=digit) if digit in KEYS and self._tries:
                self._decide(KEYS[digit])
            case AgentTurn(interrupted=False) if self._tries:
                self._was_heard = True

    def _decide(self, meaning: Decision | None) -> None:
        if not self._over:
            self._over = True
            self._person.decided(meaning)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMContextFrame) and direction is FrameDirection.DOWNSTREAM:
            self._answer(last_user_text(frame.context))
        else:
            await self.push_frame(frame, direction)

    def _answer(self, heard: str) -> None:
        meaning = decision(heard) if self._tries else None
        if meaning is not None:
            self._decide(meaning)
        elif self._person.has_agreed:
            self._decide("accept")
        elif self._person.keys and not self._tries and not heard:
            self._speak(self._dial_extension())
        else:
            self._speak(self._ask())

    def _speak(self, work: Coroutine[Any, Any, None]) -> None:
        if self._speaking is not None:
            self._speaking.cancel()
        self._speaking = self.create_task(work, "brief")

    async def _dial_extension(self) -> None:
        with suppress(LegError):  # a line that cannot: whoever has answered is asked
            self._call.leg.send_dtmf(self._person.keys)
        await asyncio.sleep(EXTENSION_S)
        await self._ask()

    async def remind(self) -> None:
        """Ask again: nobody has spoken for a while."""
        self._speak(self._ask())

    async def _ask(self) -> None:
        if self._over:
            return
        if self._tries == TRIES:
            self._decide(None)
            return
        self._tries += 1
        words = (
            self._offer if self._was_heard else f"{await self._person.introduction()} {self._offer}"
        )
        await self.push_frame(LLMFullResponseStartFrame())
        await self.push_frame(LLMTextFrame(words))
        await self.push_frame(LLMFullResponseEndFrame())

    async def cleanup(self) -> None:
        if self._speaking is not None:
            await self.cancel_task(self._speaking)
        await super().cleanup()
