"""An agent that keeps the caller company while people are called.

stage     what happens                     the agent                                       next
SEEKING   people are rung, or the caller   goes on with the caller; music in the pauses    SEEKING
          waits in a queue
          the place in a queue is due      says it between two turns                       SEEKING
          somebody accepts                 ends its sentence, within PARTING_S, says that  PARTING
                                           it connects
          nobody is left, or it takes      learns it from a message, and goes on; or       OVER
          too long                         another one takes the call over
PARTING   that was heard                   has left: the two are connected                 OVER
          the person has gone by then      goes on, and others are rung                    SEEKING
any       the caller hangs up, or is       has left                                        OVER
          transferred elsewhere
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from enum import Enum, auto
from typing import Any

import numpy as np
from loguru import logger
from pipecat.frames.frames import LLMRunFrame

from offhook.media.leg import LegError
from offhook.media.pcm import PACKET_MS, SAMPLES_OUT, Pcm
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.call.absence_io import Connect, HandedOver
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.events import CallTransferred, Event
from offhook.pipeline.conversation.turns.turn import TurnState

PARTING_S = 3.0
"""Time limit in s for the agent to end its sentence once somebody has accepted; then it is cut."""
LOOK_S = 0.1
"""Interval in s at which it is looked whether a turn is over."""
PAUSE_MS = 600
"""Silence in ms in a conversation after which music begins."""
FAILED = (
    "The transfer to {target} has failed: {reason}. Say so to the caller in one short sentence, "
    "and go on with the conversation."
)
"""What the agent's model reads then."""
_SPEAKING = (TurnState.HEARING, TurnState.ENDING)
_SILENCE = np.zeros(SAMPLES_OUT, np.int16)


class Stage(Enum):
    SEEKING = auto()
    PARTING = auto()
    OVER = auto()


class Pauses(Iterator[Pcm]):
    """Music in the pauses of a conversation: it is read when nothing else is played."""

    def __init__(self, call: Call, music: Iterator[Pcm]) -> None:
        self._call, self._music = call, music
        self._tick = self._quiet = 0

    def __next__(self) -> Pcm:
        tick = self._call.leg.ticks
        goes_on = tick == self._tick + 1 and self._call.hearing.state not in _SPEAKING
        self._tick, self._quiet = tick, self._quiet + 1 if goes_on else 0
        return next(self._music) if self._quiet * PACKET_MS >= PAUSE_MS else _SILENCE


class Company:
    """Of one caller, while people are called."""

    def __init__(self, call: Call, target: str) -> None:
        self.stage = Stage.SEEKING
        self._call, self._target = call, target
        self._tasks = TaskSet()
        """What is said."""
        self._keeping: asyncio.Task[Any] | None = None
        call.listeners.append(self._listen)

    def _listen(self, event: Event) -> None:
        if isinstance(event, CallTransferred) and self.stage is Stage.SEEKING and self._keeping:
            self._keeping.cancel()  # the agent has transferred the caller elsewhere

    async def keep(self, seek: Callable[["Company"], Awaitable[None]]) -> None:
        """Return when `seek` has: the caller is connected, gone, or with the agent alone."""
        self._keeping = asyncio.current_task()
        try:
            await seek(self)
        except HandedOver as error:
            with suppress(LegError):
                await error.hand_over()
        except LegError as error:
            self.stage = Stage.OVER
            if self._call.leg.closed is None:
                await self._inform(str(error))
        finally:
            self.stage = Stage.OVER
            self._call.listeners.remove(self._listen)
            await self._tasks.close()

    async def _inform(self, reason: str) -> None:
        """Have the agent's model answer to that, unless it has spoken since."""
        logger.info("{}: the agent goes on: {}", self._call.leg.call_id, reason)
        words = FAILED.format(target=self._target, reason=reason)
        message: Any = {"role": "system", "content": words}
        self._call.context.add_message(message)
        await self._between_turns()
        if self._call.context.messages[-1] is message:
            self._call.queue(LLMRunFrame())

    async def _between_turns(self) -> None:
        """Return once neither side speaks."""
        hearing, leg = self._call.hearing, self._call.leg
        while leg.closed is None and (
            hearing.state is not TurnState.LISTENING or hearing.agent.speaking or hearing.reply.busy
        ):
            await asyncio.sleep(LOOK_S)

    def announce(self, text: str) -> None:
        """Have the agent say something between two turns; what is not said yet is out of date."""
        for before in tuple(self._tasks):
            before.cancel()
        self._tasks.spawn(self._announce(text), f"announce {self._call.leg.call_id}")

    async def _announce(self, text: str) -> None:
        await self._between_turns()
        if self.stage is Stage.SEEKING:
            await self._call.say(text)

    async def part(self, words: str, by: Connect) -> None:
        """Have the agent end its sentence and say these words, and connect the caller. Raises
        LegError: the agent goes on."""
        self.stage = Stage.PARTING
        await self._tasks.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(PARTING_S):
                while self._call.hearing.agent.speaking:
                    await asyncio.sleep(LOOK_S)
        await self._call.say(words, instead=True)
        try:
            await self._call.transfer(self._target, by)
        except LegError:
            self.stage = Stage.SEEKING
            raise
