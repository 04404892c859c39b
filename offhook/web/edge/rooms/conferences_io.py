"""Conferences: rooms that are nobody's call, which callers of a number enter by a PIN.

A conference begins with the first who enters, and ends with the last who leaves. It is a call with
a line that nobody is at the end of: it has an id, a record, and perhaps an agent.
"""

import asyncio
from time import monotonic
from typing import Any, Protocol

import numpy as np
from loguru import logger

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, Leg, LegListener
from offhook.media.pcm import PACKET_MS, SAMPLES_IN, Pcm
from offhook.media.tasks_io import first_of
from offhook.pipeline.conversation.agents.kinds.conference import CONFERENCE, ConferenceSettings
from offhook.pipeline.conversation.call_io import Engines
from offhook.pipeline.speech.errors import EngineError
from offhook.web.config.agents import Agent as AgentSettings
from offhook.web.edge.rooms.pins import MAX_TRIES, PinGuard

PIN_S = 15.0
"""Seconds for a caller to press the next digit of a PIN; then what was pressed is tried."""
PROMPT_S = 30.0
"""Seconds for the voice to say a sentence and for that to be played; then it goes on without."""
END_OF_PIN = "#"

_SILENCE = np.zeros(SAMPLES_IN, np.int16)


class ConferenceLeg(Leg):
    """The line of a conference itself: nothing comes from it, and what is sent is heard by
    nobody."""

    def _receive(self, now: float) -> Pcm:
        return _SILENCE

    def _send(self, said: Pcm | None, now: float) -> None:
        pass


class Host(Protocol):
    """What an edge provides to conferences."""

    def new_id(self) -> str: ...

    def hold(self, leg: Leg, agent: str = "") -> Any: ...

    def begin(self, call: Any) -> Any: ...


class _Keys(LegListener):
    """The keys that a caller presses at the door."""

    def __init__(self) -> None:
        self._pressed: asyncio.Queue[str] = asyncio.Queue(64)

    def on_dtmf(self, digit: str) -> None:
        if not self._pressed.full():
            self._pressed.put_nowait(digit)

    async def pin(self, length: int) -> str:
        """Return the digits up to a hash key, or as many as the PIN has."""
        digits = ""
        try:
            while len(digits) < length:
                async with asyncio.timeout(PIN_S):
                    digit = await self._pressed.get()
                if digit == END_OF_PIN:
                    break
                digits += digit
        except TimeoutError:
            pass
        return digits


class Conferences:
    """The conferences of one process, by the names of their agents."""

    def __init__(self) -> None:
        self._legs: dict[str, ConferenceLeg] = {}
        self._guards: dict[str, PinGuard] = {}

    @property
    def call_ids(self) -> list[str]:
        """Ids of those in progress."""
        return [leg.call_id for leg in self._legs.values() if leg.closed is None]

    def find(self, call_id: str) -> Leg | None:
        """Return the line of a conference in progress."""
        return next((leg for leg in self._legs.values() if leg.call_id == call_id), None)

    async def enter(
        self, host: Host, leg: Leg, name: str, agent: AgentSettings, engines: Engines
    ) -> str:
        """Ask a caller for the PIN, if there is one, in the voice of `engines`. Returns the id of
        the conference, which begins if it has not; "" for a caller who may not come in, or has
        left."""
        settings = ConferenceSettings.model_validate(agent.settings)
        keys = _Keys()
        leg.attach(keys)
        if agent.greeting:
            await _say(leg, engines, agent.greeting, goes_on=True)
        if settings.pin and not await self._knows_pin(leg, name, settings, engines, keys):
            await leg.hang_up(End.DECLINED)
            return ""
        return "" if leg.closed is not None else await self._begun(host, name, settings)

    async def _knows_pin(
        self, leg: Leg, name: str, settings: ConferenceSettings, engines: Engines, keys: _Keys
    ) -> bool:
        guard = self._guards.setdefault(name, PinGuard())
        for left in reversed(range(MAX_TRIES)):
            given = await _unless_closed(leg, keys.pin(len(settings.pin)))
            if given is None:
                return False
            if guard.admits(settings.pin, given, monotonic()):
                leg.playout.flush()
                return True
            logger.bind(a_minute=f"pin {name}").warning(
                "{}: a wrong PIN for the conference {}", leg.call_id, name
            )
            await _say(leg, engines, settings.wrong_pin if left else settings.refused)
        return False

    async def _begun(self, host: Host, name: str, settings: ConferenceSettings) -> str:
        current = self._legs.get(name)
        if current is not None and current.closed is None:
            return current.call_id
        leg = self._legs[name] = ConferenceLeg(host.new_id())
        leg.info = CallInfo(edge=CONFERENCE.name, called=name)
        leg.connect()
        host.begin(host.hold(leg, settings.agent or name))
        await asyncio.sleep(0)  # it is on the clock from its first step on
        return leg.call_id


async def _say(leg: Leg, engines: Engines, text: str, *, goes_on: bool = False) -> None:
    """Say a sentence at the door, and wait until it was played, unless it `goes_on` while keys are
    pressed. Without a voice callers hear silence, and may press keys."""
    try:
        async with asyncio.timeout(PROMPT_S):
            stream = engines.synthesizer.open(engines.speaking)
            stream.write(text)
            stream.end()
            async for speech in stream:
                leg.playout.write(speech.pcm)
            while not goes_on and leg.playout.queued and leg.closed is None:
                await asyncio.sleep(PACKET_MS / 1000)
    except (EngineError, ValueError, TimeoutError, BufferError) as error:
        logger.warning("{}: nothing was said: {}", leg.call_id, error)


async def _unless_closed(leg: Leg, coming: Any) -> str | None:
    """Return what is coming; None if the line closes before."""
    come, _ = await first_of(coming, leg.until_closed())
    return come if leg.closed is None else None
